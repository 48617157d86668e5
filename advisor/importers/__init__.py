"""Configurations of other tools: what such a run needs, what is wrong with it, the better one in the tool's form."""
