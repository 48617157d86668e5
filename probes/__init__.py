"""Measurements: dry runs, probes and benchmarks of plans and machines, and their store."""
