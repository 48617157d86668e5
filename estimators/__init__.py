"""Pure arithmetic: model shape, parameters, memory, time, hardware facts. No torch, no globals, no I/O but the data
files."""
