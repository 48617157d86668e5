"""`ds-advise check`: configurations against requirements, for continuous integration."""
