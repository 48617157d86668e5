"""Rows of a training file as token sequences and samples. It does not import torch."""
