"""Scripts that measure what the project claims; run them from the checkout: python -m benchmarks.NAME."""
