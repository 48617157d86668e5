"""The user's own job: what was said of it, and how its duration and cost are told."""
