"""The what-if page in a real browser: how soon it answers, and what its tests drive it with."""
