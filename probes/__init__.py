"""Measurements: what a plan really needs, found by running it."""
