"""From a file of rows to token sequences of which the answers are trained. No torch in here."""
