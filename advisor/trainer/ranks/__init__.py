"""What runs in every rank of a training."""
