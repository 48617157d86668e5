"""What the host spends per layer, hook and engine step: the real engine over models too narrow to take time."""
