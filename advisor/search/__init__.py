"""The search for the fastest plan of a question, and for the largest sequence, micro batch or model that fits."""
