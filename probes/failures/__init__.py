"""Known failures of DeepSpeed trainings: a table of messages, and the search for the first one in a log."""
