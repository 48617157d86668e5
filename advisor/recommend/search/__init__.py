"""The search for a plan: which are tried, and which is taken."""
