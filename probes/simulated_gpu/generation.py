"""Completions without a model that computes them.

A dry run of a command generates as its script does. That of a model by name replaces `generate` and vLLM: completions
have their full length at once, and what the trainer does around them (gathering weights, sending them) stays its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch


def replace_generate() -> None:
    """Replace transformers' `generate`."""
    utils: Any = importlib.import_module("transformers.generation.utils")
    utils.GenerationMixin.generate = _generate


def _generate(model: Any, inputs: Any = None, generation_config: Any = None, **options: Any) -> Any:
    """The prompts, followed by a token that ends nothing; with scores in fp32 if the configuration wants them
    (transformers 5.24 generation/utils.py `_sample`)."""
    prompts = options["input_ids"] if inputs is None else inputs
    settings = generation_config or model.generation_config
    length = options.get("max_new_tokens") or settings.max_new_tokens
    token = _token(settings.eos_token_id, settings.pad_token_id)
    completions = torch.full((len(prompts), length), token, dtype=prompts.dtype, device=prompts.device)
    sequences = torch.cat([prompts, completions], dim=1)
    if not options.get("return_dict_in_generate", settings.return_dict_in_generate):
        return sequences
    shape = (len(prompts), model.config.get_text_config().vocab_size)
    scores = [torch.empty(shape, dtype=torch.float32, device=prompts.device) for _ in range(length)]
    return SimpleNamespace(sequences=sequences, scores=tuple(scores))


def _token(*ends: Any) -> int:
    """A token that is none of the ends, which are numbers, lists of numbers or None, nor one of the first three, which
    a tokenizer has for padding and ends."""
    taken = {number for each in ends for number in (each if isinstance(each, list) else [each])}
    return next(number for number in count(3) if number not in taken)


class _Engine:
    """vLLM, which accepts every call, or a client of its server."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def update_named_params(self, _metadata: Any, weights: Iterable[Any]) -> None:
        for _ in weights:
            pass

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def replace_vllm(phased: Callable[..., Any], module: Any) -> None:
    """Replace vLLM in `trl.generation.vllm_generation`; its `sync_weights` stays (trl 1.16).

    phased: wraps a function of the second argument as the phase of the first.
    """

    def connect(own: Any) -> None:
        own.llm = own.vllm_client = _Engine()
        own._llm_weights_sleeping = own.enable_sleep_mode

    def generate(own: Any, prompts: list[list[int]], *_: Any, **__: Any) -> tuple[Any, ...]:
        length = own.max_completion_length
        tokenizer = own.processing_class
        token = _token(own.model.generation_config.eos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return prompts, [[token] * length for _ in prompts], [[[-1.0]] * length for _ in prompts], None

    vllm = module.VLLMGeneration
    vllm._init_vllm, vllm.generate = connect, generate
    vllm.sync_weights = phased("generation", vllm.sync_weights)
