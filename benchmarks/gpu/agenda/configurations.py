"""The trainings whose memory and time are compared with the predictions, the most telling first.

Three families from 0.5B to 14B; one GPU, and one rank of 2, 8 and 64; every stage and offload; full training, LoRA and
QLoRA; with and without checkpointing, fused loss and expandable segments; 512 to 32,768 tokens. Two of them are
expected to run out of 80 GB.
"""

from __future__ import annotations

from dataclasses import replace

from ..configuration import Configuration as C

_TINY = (
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("vocab_size", 1024),
)
"""Widths at which the GPU has next to nothing to do, so that a step takes as long as the host needs to launch it."""

MEMORY = (
    C(model="Qwen2.5-0.5B", strategy="ddp", micro_batch_size=4),
    C(model="Qwen2.5-7B", strategy="zero3", world_size=8, micro_batch_size=2, seq_len=4096),
    C(model="Llama-3.2-1B", strategy="zero2", micro_batch_size=4, gradient_checkpointing=False),
    C(model="Qwen2.5-1.5B", strategy="zero3-offload", micro_batch_size=2),
    C(model="Llama-3.1-8B", strategy="ddp", method="lora", micro_batch_size=2, seq_len=4096),
    C(model="Qwen2.5-7B", strategy="ddp", method="qlora", micro_batch_size=2, seq_len=4096),
    C(model="Qwen2.5-1.5B", strategy="ddp", loss="fused", seq_len=32768),
    C(model="Qwen2.5-7B", strategy="zero2", world_size=8, micro_batch_size=2),
    C(model="gemma-2-2b", strategy="zero2-offload", micro_batch_size=2, seq_len=1024),
    C(model="Qwen2.5-14B", strategy="zero3", world_size=64, seq_len=8192),
    C(model="Qwen2.5-0.5B", strategy="ddp", micro_batch_size=4, expandable_segments=False),
    C(model="Qwen2.5-7B", strategy="zero3", world_size=8, micro_batch_size=2, seq_len=4096, expandable_segments=False),
    C(model="Qwen2.5-3B", strategy="zero1", world_size=2, micro_batch_size=2),
    C(model="Llama-3.1-8B", strategy="zero3", world_size=64, seq_len=32768),
    C(model="Qwen2.5-7B", strategy="ddp"),  # 16 bytes a parameter: 122 GB
    C(model="Qwen2.5-14B", strategy="zero3-offload", world_size=8, micro_batch_size=2),
    C(model="Qwen2.5-1.5B", strategy="zero3", micro_batch_size=16, seq_len=512, gradient_checkpointing=False),
    C(model="gemma-2-9b", strategy="zero3", world_size=8),
    C(model="Qwen2.5-14B", strategy="ddp", method="lora"),
    C(model="Llama-3.1-8B", strategy="zero2", world_size=2, method="lora", gradient_checkpointing=False, seq_len=1024),
    C(model="Qwen2.5-14B", strategy="zero3", world_size=2, method="lora", micro_batch_size=2),
    C(model="Llama-3.2-1B", strategy="ddp", loss="fused", seq_len=16384),
    C(model="Llama-3.2-1B", strategy="ddp", seq_len=16384),
    C(model="Qwen2.5-7B", strategy="zero2-offload", world_size=8),
    C(model="Llama-3.1-8B", strategy="zero3-offload-param", world_size=8),
    C(model="Qwen2.5-14B", strategy="ddp", method="qlora", seq_len=1024),
    C(
        model="Llama-3.1-8B",
        strategy="ddp",
        method="qlora",
        micro_batch_size=4,
        seq_len=512,
        gradient_checkpointing=False,
    ),
    C(model="Qwen2.5-0.5B", strategy="zero3", world_size=64, micro_batch_size=8, seq_len=512),
    C(model="Llama-3.1-8B", strategy="zero1", world_size=8, seq_len=1024),
    C(model="Llama-3.2-3B", strategy="zero2", world_size=8, gradient_accumulation_steps=4, micro_batch_size=2),
    C(
        model="gemma-2-2b",
        strategy="ddp",
        method="lora",
        micro_batch_size=4,
        gradient_checkpointing=False,
        seq_len=1024,
    ),
    C(model="Qwen2.5-0.5B", strategy="zero3-nvme", micro_batch_size=2),
    C(
        model="Qwen2.5-3B", strategy="ddp", micro_batch_size=8, gradient_checkpointing=False
    ),  # runs out in its activations
    C(model="Qwen2.5-0.5B", strategy="ddp", seq_len=32768, loss="fused", expandable_segments=False),
)

_HOST_BOUND = C(model="Qwen2.5-7B", strategy="ddp", seq_len=128, gradient_checkpointing=False, steps=8, changes=_TINY)

HOST_TIME = (
    _HOST_BOUND,
    replace(_HOST_BOUND, strategy="zero3", world_size=8),
    replace(_HOST_BOUND, strategy="zero3", world_size=8, method="lora", gradient_checkpointing=True),
    replace(_HOST_BOUND, method="lora", gradient_checkpointing=True),
    replace(_HOST_BOUND, strategy="zero2", world_size=8, gradient_checkpointing=True),
)
"""Trainings that the host's launches bound: time for each operation, and at ZeRO-3 for each hook."""

TOY_WIDTHS = (*_TINY, ("num_hidden_layers", 2))

TOY = C(model="Llama-3.2-1B", strategy="zero3", world_size=2, seq_len=64, method="lora", changes=TOY_WIDTHS)
"""What stands for all of these on a machine without a GPU."""
