"""Charts as SVG text, made from plain data with the standard library alone: no terminal, no network, no torch."""
