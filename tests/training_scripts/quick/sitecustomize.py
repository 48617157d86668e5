"""Fewer searches for reference cycles: while torch, DeepSpeed and transformers are imported they take a tenth of the
time, in every rank of every training."""

import gc

gc.set_threshold(100_000, 50, 50)
