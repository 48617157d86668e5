"""Ranks as processes, for probes and benchmarks: started together, watched by their event logs, ended together."""
