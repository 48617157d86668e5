"""Configurations of other tools: needs and errors of such a run, and a better one in the tool's form."""
