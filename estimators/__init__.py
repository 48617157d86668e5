"""Pure arithmetic: model shape, parameters, memory, time, hardware facts. No torch, no globals; the only I/O reads
the data files."""
