"""The readers: one module for each tool's words, one for each kind of text."""
