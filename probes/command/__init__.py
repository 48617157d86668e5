"""The user's own training command, run unmodified on the simulated GPU."""
