"""Pictures made of plain data with the standard library alone, as SVG text; no terminal, no network, no torch."""
