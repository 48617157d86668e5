"""What the search chooses."""
