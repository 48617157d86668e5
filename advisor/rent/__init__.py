"""Which machine to rent: every machine of a price table with its best plan, its cost and its duration."""
