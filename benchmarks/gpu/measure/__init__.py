"""The measurements, each a module with `measure(arguments, place)`, run in a process of its own (`__main__.py`)."""
