"""Run a few real steps of a plan on this machine: measured memory, time and failures."""
