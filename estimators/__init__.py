"""Pure arithmetic: model shape, parameters, memory, throughput, hardware facts. No torch, no globals, no I/O but the data files."""
