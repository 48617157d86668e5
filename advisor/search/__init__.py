"""The largest of what may grow, a sequence, a micro batch or a model, at which some plan may still be recommended."""
