"""Faults struck in real trainings, and what `ds-advise why` says of their logs."""
