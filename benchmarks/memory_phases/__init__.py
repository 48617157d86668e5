"""The phases that `ds-advise why` names for tracebacks of the installed software."""
