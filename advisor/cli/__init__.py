"""JSON Schemas of what `--json` prints, made from the types of the code that prints it."""
