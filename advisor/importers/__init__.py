"""Configurations of other tools: memory, time and errors of the run they describe, and a better one in the tool's
format."""
