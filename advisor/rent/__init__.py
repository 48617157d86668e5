"""Which machine to rent: every machine of a price table with its best plan, what it costs and how long it takes."""
