"""How long a whole training takes and what it costs: arithmetic over a plan's step."""
