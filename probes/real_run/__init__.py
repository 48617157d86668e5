"""A few real steps of a plan on this machine: memory, time and failure as they happen."""
