"""Activation memory of a training step, in closed form, derived operation by operation from transformers' code."""

from .activation_memory import ActivationMemory, activation_memory

__all__ = ["ActivationMemory", "activation_memory"]
