"""The machine that is measured: how its processes find what they need, and what is known of it."""
