"""The search for the fastest plan of a question, and for the largest sequence or micro batch that fits."""
