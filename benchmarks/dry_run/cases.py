"""The plans on which the closed form is compared with the dry run: a full grid, and settings that the grid leaves at
rest."""

# mypy: disable-error-code="arg-type"
# The options in a table have the type str.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from zlib import crc32

from ds_advise.estimators.plan import STRATEGIES, Strategy
from ds_advise.estimators.workload import LossKernel, Method, Mlp, Objective, Precision

_QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768}

FAMILIES: dict[str, dict[str, Any]] = {
    # Qwen2.5-0.5B's widths: a tied embedding that outweighs the layers, biases of q, k, v.
    "qwen2": {
        **_QWEN2,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 2,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    # Llama's widths at 1B: an untied head, grouped heads.
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "max_position_embeddings": 16384,
    },
    # Gemma 2: sandwich norms, eager attention with windows in every other layer, soft caps, a vocabulary of 256,000.
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 256000,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
    # GPT-2: learned positions, LayerNorm, Conv1D, biases, dropout.
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 1024,
        "n_layer": 2,
        "n_head": 16,
        "vocab_size": 50257,
        "n_positions": 8192,
        "tie_word_embeddings": True,
    },
    # Qwen3-MoE: routed experts in fused tensors, norms of queries and keys.
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "vocab_size": 65536,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
    },
    # Mixtral: few wide experts.
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
    },
    # Phi-3: q, k, v in one tensor, gate and up in one, heads of 96.
    "phi3": {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 16384,
        "pad_token_id": 0,
    },
    # T5: encoder and decoder, relative positions in the scores.
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_heads": 12,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "vocab_size": 32128,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    # BERT: norms after the branches, dropout, an encoder with a head that transforms.
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "vocab_size": 30522,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    # Qwen3.5-0.8B's widths: three layers of linear attention and a gated one, with a tower that text leaves idle.
    "qwen3_5": {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "vocab_size": 248320,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": True,
        },
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 2,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_heads": 12,
            "out_hidden_size": 1024,
        },
    },
    # Llama 4: dense layers between those with experts, each of which computes every token.
    "llama4": {
        "model_type": "llama4_text",
        "architectures": ["Llama4ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 1536,
        "intermediate_size_mlp": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_local_experts": 8,
        "interleave_moe_layer_step": 2,
        "vocab_size": 65536,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
    },
    # Qwen2.5-0.5B as it is, and Qwen2.5-7B with 8 of its 28 layers.
    "0.5B": {
        **_QWEN2,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "7B/8": {
        **_QWEN2,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 8,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
}
FAMILIES["30B-A3B/4"] = {
    **FAMILIES["qwen3_moe"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
"""Qwen3-30B-A3B with 4 of its 48 layers."""
FAMILIES["8x7B/2"] = {
    **FAMILIES["mixtral"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
"""Mixtral-8x7B with 2 of its 32 layers."""
_SHALLOW = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 64000,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
}
_ROUTED = {"num_experts": 16, "n_routed_experts": 16, "num_local_experts": 16, "moe_num_experts": 16}
_ROUTED |= {"num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 1024, "n_group": 1, "topk_group": 1}
_ROUTED |= {"n_shared_experts": 1, "first_k_dense_replace": 1}
_LATENT = {"head_dim": 64, "num_key_value_heads": 16}
SHARING = {
    model_type: {"model_type": model_type, "architectures": [f"{name}ForCausalLM"], **_SHALLOW, **_ROUTED, **more}
    for model_type, name, more in (
        ("deepseek_v2", "DeepseekV2", _LATENT),
        ("deepseek_v3", "DeepseekV3", _LATENT),
        ("qwen2_moe", "Qwen2Moe", {}),
        ("qwen3_5_moe_text", "Qwen3_5Moe", {}),
    )
}
"""Experts with shared ones, as AutoEP knows them."""
FAMILIES |= SHARING
RECORDED = {
    model_type: {"model_type": model_type, **_SHALLOW, **more}
    for model_type, more in {
        "afmoe": _ROUTED,
        "apertus": {},
        "arcee": {},
        "diffllama": {},
        "dots1": _ROUTED,
        "ernie4_5_moe": _ROUTED,
        "exaone4": {},
        "flex_olmo": _ROUTED,
        "glm4_moe": _ROUTED,
        "granitemoeshared": {**_ROUTED, "shared_intermediate_size": 1024},
        "helium": {},
        "hunyuan_v1_dense": {},
        "hunyuan_v1_moe": {**_ROUTED, "moe_topk": 2},
        "jais2": {},
        "minimax_m2": {**_ROUTED, "intermediate_size": 1024},
        "nanochat": {},
        "nemotron": {},
        "persimmon": {"num_key_value_heads": 16},
        "phimoe": {**_ROUTED, "intermediate_size": 1024},
        "solar_open": _ROUTED,
        "vaultgemma": {},
    }.items()
}
"""Types without a row in `estimators.models.families`, whose layers are recorded."""
FAMILIES |= RECORDED
GRID_FAMILIES = ("qwen2", "llama", "gemma2", "gpt2", "qwen3_moe", "phi3")
ENCODERS = ("t5", "bert")
MIXED = ("qwen3_5", "llama4")
"""Layers of two kinds by turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan to compare; `changes` are applied to the strategy's preset."""

    model: str
    strategy: Strategy
    world_size: int
    micro_batch_size: int = 1
    seq_len: int = 1024
    gradient_accumulation_steps: int = 1
    checkpointing: bool = True
    method: Method = "full"
    modules_to_save: tuple[str, ...] = ()
    precision: Precision = "bf16"
    mlp: Mlp = "whole"
    loss: LossKernel = "standard"
    objective: Objective = "next-token"
    precomputed: bool = False
    beta: float = 0.0
    """Of "grpo"."""
    changes: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        parts = [self.model, self.strategy, f"N={self.world_size}", f"B={self.micro_batch_size}", f"S={self.seq_len}"]
        parts += [f"gas={self.gradient_accumulation_steps}"] * (self.gradient_accumulation_steps > 1)
        parts += ["no-ckpt"] * (not self.checkpointing) + [self.method] * (self.method != "full")
        parts += [f"saves={','.join(self.modules_to_save)}"] * bool(self.modules_to_save)
        parts += [self.precision] * (self.precision != "bf16")
        parts += [f"mlp={self.mlp}"] * (self.mlp != "whole") + [f"loss={self.loss}"] * (self.loss != "standard")
        parts += [self.objective] * (self.objective != "next-token") + ["precomputed"] * self.precomputed
        parts += [f"beta={self.beta:g}"] * (self.beta > 0)
        return " ".join([*parts, *(f"{key}={value}" for key, value in self.changes)])


SEQUENCES, WORLD_SIZES = (512, 2048, 8192), (2, 8, 64)
METHODS: tuple[Method, ...] = ("full", "lora")

GRID = tuple(
    Case(model=model, strategy=strategy, world_size=ranks, seq_len=seq_len, checkpointing=checkpointing, method=method)
    for model, strategy, checkpointing, seq_len, ranks, method in product(
        GRID_FAMILIES, STRATEGIES, (True, False), SEQUENCES, WORLD_SIZES, METHODS
    )
)


_OBJECTIVES: tuple[tuple[Objective, bool], ...] = (
    ("dpo", False),
    ("dpo", True),
    ("kto", False),
    ("orpo", False),
    ("simpo", False),
    ("reward", False),
)
_by_trl = partial(Case, world_size=8, micro_batch_size=2, seq_len=1024)

PREFERENCES = tuple(
    _by_trl(
        model=model,
        strategy=strategy,
        checkpointing=checkpointing,
        method=method,
        modules_to_save=("score",) if objective == "reward" and method == "lora" else (),
        objective=objective,
        precomputed=precomputed,
    )
    for (model, strategy, checkpointing), method, (objective, precomputed) in product(
        (
            ("llama", "zero2", True),
            ("qwen2", "zero2-offload", False),
            ("llama", "zero3", False),
            ("qwen2", "zero3", True),
            ("7B/8", "zero3-offload", True),
        ),
        METHODS,
        _OBJECTIVES,
    )
)
"""Trainings by TRL, half of them with a reference model or its passes."""


ROLLOUTS = tuple(
    _by_trl(
        model=model,
        strategy=strategy,
        gradient_accumulation_steps=2,
        checkpointing=checkpointing,
        method=method,
        objective="grpo",
        beta=beta,
    )
    for (model, strategy, checkpointing), method, beta in product(
        (
            ("llama", "zero2", True),
            ("qwen2", "zero2-offload", False),
            ("llama", "zero3", False),
            ("7B/8", "zero3-offload", True),
        ),
        METHODS,
        (0.0, 0.1),
    )
)
"""GRPO by TRL, with and without a reference: scoring and training, and stage 3's gather before `generate`."""


PPO = tuple(
    _by_trl(model=model, strategy=strategy, gradient_accumulation_steps=2, checkpointing=checkpointing, objective="ppo")
    for model, strategy, checkpointing in (
        ("llama", "zero2", True),
        ("llama", "zero2", False),
        ("qwen2", "zero1", True),
        ("qwen2", "zero2-offload", False),
        ("llama", "zero3", True),
        ("llama", "zero3", False),
        ("qwen2", "zero3", True),
        ("qwen2", "zero3-offload-param", False),
        ("7B/8", "zero3", True),
        ("7B/8", "zero3-offload", True),
    )
)
"""PPO by TRL 1.12: scoring and training of policy and value model."""


RECORDED_CASES = tuple(
    Case(model=model, strategy=strategy, world_size=8, seq_len=seq_len, checkpointing=checkpointing, method=method)
    for model, (strategy, seq_len, checkpointing, method) in product(
        RECORDED, (("zero2", 2048, True, "full"), ("zero3", 1024, False, "full"), ("zero3", 2048, False, "lora"))
    )
    if (model, method) != ("phimoe", "lora")  # whose routers peft cannot adapt
)
"""Models that are recorded, on plans of either kind."""


def live(elements: int) -> tuple[tuple[str, object], ...]:
    """ZeRO-3 that may keep so much gathered; the presets' limits are above a shallow model's size."""
    return (
        ("stage3_max_live_parameters", elements),
        ("stage3_max_reuse_distance", elements),
        ("stage3_prefetch_bucket_size", elements // 10),
    )


def partly_offloaded(ratio: float, sub_group_size: int = 10_000_000) -> tuple[tuple[str, object], ...]:
    """An offloaded optimizer with a share that stays on the GPU, in sub-groups small enough to split the model."""
    return (("offload_optimizer_ratio", ratio), ("sub_group_size", sub_group_size))


def shared_by(ranks: int) -> tuple[tuple[str, object], ...]:
    """A sample that `ranks` ranks share."""
    return (("sequence_parallel_size", ranks),)


SEQUENCE_PARALLEL = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=seq_len,
            checkpointing=checkpointing,
            changes=shared_by(ranks),
        )
        for model, strategy, checkpointing, seq_len, ranks in product(
            ("llama", "phi3", "qwen3_moe"), ("zero2", "zero3", "zero3-offload"), (True, False), (2048, 16384), (2, 8)
        )
    ),
    *(
        Case(
            model="qwen2",
            strategy=strategy,
            world_size=2,
            micro_batch_size=2,
            seq_len=4096,
            method=method,
            changes=shared_by(2),
        )
        for strategy, method in product(("ddp", "zero1", "zero2", "zero3"), METHODS)
    ),
    Case(model="0.5B", strategy="zero3", world_size=8, seq_len=32768, changes=shared_by(2)),
    Case(model="7B/8", strategy="zero3", world_size=64, seq_len=131072, changes=shared_by(4)),
    Case(model="7B/8", strategy="zero3-offload", world_size=8, seq_len=65536, changes=shared_by(4)),
    Case(model="7B/8", strategy="zero2-offload", world_size=8, seq_len=32768, changes=shared_by(2)),
    Case(model="7B/8", strategy="zero3", world_size=8, seq_len=32768, method="lora", changes=shared_by(4)),
)
"""Samples that ranks share (Ulysses): fewer and more heads of keys and values than ranks, micro batches of 1 and 2."""


def split_by(ranks: int) -> tuple[tuple[str, object], ...]:
    """Layers that `ranks` ranks split."""
    return (("autotp_size", ranks),)


COPIES_TRAINED = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=ranks,
            seq_len=seq_len,
            checkpointing=checkpointing,
            method="lora",
            modules_to_save=("embed_tokens", "lm_head"),
        )
        for model, strategy, ranks, checkpointing, seq_len in product(
            ("llama", "qwen2"), STRATEGIES[:-1], (2, 64), (True, False), (512, 4096)
        )
    ),
    *(
        Case(model=model, strategy=strategy, world_size=8, method="lora", modules_to_save=(saved,))
        for model, strategy, saved in product(
            ("llama", "qwen2"), ("ddp", "zero1", "zero2", "zero3"), ("embed_tokens", "lm_head")
        )
    ),
    *(
        Case(
            model="7B/8",
            strategy=strategy,
            world_size=8,
            seq_len=2048,
            method="lora",
            modules_to_save=("embed_tokens", "lm_head"),
        )
        for strategy in STRATEGIES
    ),
    Case(
        model="llama",
        strategy="zero2",
        world_size=8,
        gradient_accumulation_steps=4,
        method="lora",
        modules_to_save=("embed_tokens", "lm_head"),
    ),
    Case(
        model="llama",
        strategy="zero3",
        world_size=8,
        method="lora",
        modules_to_save=("embed_tokens", "lm_head"),
        changes=live(60_000_000),
    ),
    Case(model="gpt2", strategy="zero2", world_size=8, method="lora", modules_to_save=("wte", "lm_head")),
)
"""Embeddings and heads that train as copies, with adapters."""

_HPZ_2 = (("zero_hpz_partition_size", 2),)
_IN_BF16 = (("bf16_master_weights_and_grads", True), ("bf16_optimizer_states", True))

STATES_IN_BF16 = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=2048,
            gradient_accumulation_steps=steps,
            changes=_IN_BF16,
        )
        for model, strategy, steps in product(("qwen2", "llama", "phi3"), STRATEGIES[1:-1], (1, 2))
    ),
    *(
        Case(model="llama", strategy=strategy, world_size=2, seq_len=2048, changes=_IN_BF16[:1])
        for strategy in ("zero2-offload", "zero3-offload")
    ),
    *(
        Case(model="7B/8", strategy=strategy, world_size=ranks, changes=_IN_BF16)
        for strategy, ranks in (("zero2", 2), ("zero3", 8), ("zero2-offload", 2), ("zero3-offload", 2))
    ),
    Case(model="llama", strategy="zero3-offload", world_size=2, changes=(*_IN_BF16, *partly_offloaded(0.5))),
    Case(model="0.5B", strategy="zero2", world_size=8, seq_len=2048, method="lora", changes=_IN_BF16),
)
"""Masters and optimizer states in bf16."""

SECOND_COPIES = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=ranks,
            seq_len=2048,
            checkpointing=checkpointing,
            method=method,
            changes=(("zero_hpz_partition_size", 8),),
        )
        for model, strategy, ranks, checkpointing, method in product(
            ("llama", "phi3", "qwen2"), ("zero3", "zero3-offload"), (16, 64), (True, False), METHODS
        )
    ),
    Case(model="llama", strategy="zero3", world_size=4, gradient_accumulation_steps=2, changes=_HPZ_2),
    Case(model="llama", strategy="zero3", world_size=16, changes=(("zero_hpz_partition_size", 8), *live(60_000_000))),
    Case(model="7B/8", strategy="zero3", world_size=16, changes=(("zero_hpz_partition_size", 8),)),
    Case(model="7B/8", strategy="zero3", world_size=64, method="lora", changes=(("zero_hpz_partition_size", 8),)),
    Case(model="0.5B", strategy="zero3", world_size=16, changes=(("zero_hpz_partition_size", 8),)),
)
"""A second copy of the weights in each node (hpZ)."""

_WEIGHTS_IN_8_BITS = (("zero_quantized_weights", True),)
_GRADIENTS_IN_4_BITS = (("zero_quantized_gradients", True),)

QUANTIZED = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=ranks,
            seq_len=2048,
            checkpointing=checkpointing,
            changes=changes,
        )
        for model, strategy, ranks, checkpointing, changes in product(
            ("llama", "phi3", "qwen2"),
            ("zero3", "zero3-offload"),
            (16, 64),
            (True, False),
            (_WEIGHTS_IN_8_BITS, _GRADIENTS_IN_4_BITS, (*_WEIGHTS_IN_8_BITS, *_GRADIENTS_IN_4_BITS)),
        )
        if changes == _GRADIENTS_IN_4_BITS or (model, ranks) != ("qwen2", 64)
    ),
    *(
        Case(model=model, strategy="zero3", world_size=16, changes=(*changes, ("zero_hpz_partition_size", 8)))
        for model, changes in product(
            ("llama", "0.5B", "7B/8"), (_WEIGHTS_IN_8_BITS, (*_WEIGHTS_IN_8_BITS, *_GRADIENTS_IN_4_BITS))
        )
    ),
    *(
        Case(model="7B/8", strategy="zero3", world_size=64, precision=precision, changes=changes)
        for precision, changes in product(
            ("bf16", "fp16"), (_WEIGHTS_IN_8_BITS, _GRADIENTS_IN_4_BITS, (*_WEIGHTS_IN_8_BITS, *_GRADIENTS_IN_4_BITS))
        )
    ),
    Case(model="llama", strategy="zero3", world_size=16, method="lora", changes=_WEIGHTS_IN_8_BITS),
    Case(model="7B/8", strategy="zero3", world_size=16, method="lora", changes=_WEIGHTS_IN_8_BITS),
)
"""ZeRO++'s quantized collectives. Their kernels run on CUDA only: dry runs allocate what DeepSpeed's sources say."""

LAYERS_SPLIT = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=2048,
            checkpointing=checkpointing,
            changes=split_by(ranks),
        )
        for model, strategy, checkpointing, ranks in product(
            ("llama", "qwen2"),
            ("ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload"),
            (True, False),
            (2, 4),
        )
        if (model, ranks) != ("qwen2", 4)
    ),
    Case(model="7B/8", strategy="zero2", world_size=8, seq_len=4096, changes=split_by(4)),
    Case(model="7B/8", strategy="zero3", world_size=8, seq_len=4096, changes=split_by(2)),
    Case(model="0.5B", strategy="zero1", world_size=4, micro_batch_size=2, changes=split_by(2)),
    Case(model="llama", strategy="ddp", world_size=2, gradient_accumulation_steps=2, changes=split_by(2)),
)
"""Layers that ranks split (AutoTP): untied and tied heads."""


def spread_over(ranks: int) -> tuple[tuple[str, object], ...]:
    """Experts that `ranks` ranks keep."""
    return (("autoep_size", ranks),)


_SPREADING = ("zero1", "zero2", "zero3")
_LIMITS = ("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size")
_SOME_LIVE = tuple(zip(_LIMITS, (60_000_000, 100_000_000, 20_000_000), strict=True))
_NONE_LIVE = tuple((name, 0) for name in _LIMITS)

EXPERTS_SPREAD = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=world_size,
            seq_len=seq_len,
            checkpointing=checkpointing,
            changes=spread_over(ranks),
        )
        for model, strategy, checkpointing, (world_size, ranks), seq_len in product(
            ("qwen3_moe", "mixtral"), _SPREADING, (True, False), ((2, 2), (8, 2), (8, 4), (8, 8)), (512, 4096)
        )
    ),
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            micro_batch_size=2,
            seq_len=2048,
            gradient_accumulation_steps=2,
            changes=spread_over(ranks),
        )
        for model, strategy, ranks in product(("qwen3_moe", "mixtral"), _SPREADING, (4, 8))
    ),
    *(
        Case(
            model=model,
            strategy="zero3",
            world_size=world_size,
            seq_len=1024,
            checkpointing=checkpointing,
            changes=(*spread_over(ranks), *limits),
        )
        for model, (world_size, ranks), checkpointing, limits in product(
            ("qwen3_moe", "mixtral"), ((8, 2), (8, 8), (16, 8)), (True, False), (_SOME_LIVE, _NONE_LIVE)
        )
    ),
    *(
        Case(model=model, strategy=strategy, world_size=8, checkpointing=checkpointing, changes=spread_over(ranks))
        for model, (strategy, checkpointing, ranks) in product(
            SHARING, (("zero1", False, 8), ("zero2", False, 2), ("zero3", True, 8), ("zero3", False, 8))
        )
    ),
    Case(model="30B-A3B/4", strategy="zero1", world_size=8, seq_len=4096, changes=spread_over(8)),
    Case(model="30B-A3B/4", strategy="zero2", world_size=16, seq_len=4096, changes=spread_over(8)),
    Case(model="8x7B/2", strategy="zero1", world_size=8, seq_len=4096, changes=spread_over(4)),
    Case(model="8x7B/2", strategy="zero2", world_size=16, seq_len=4096, changes=spread_over(8)),
    Case(model="30B-A3B/4", strategy="zero3", world_size=8, seq_len=4096, changes=spread_over(8)),
    Case(model="30B-A3B/4", strategy="zero3", world_size=16, seq_len=4096, changes=spread_over(8)),
    Case(model="8x7B/2", strategy="zero3", world_size=8, seq_len=4096, changes=spread_over(4)),
    Case(model="8x7B/2", strategy="zero3", world_size=16, seq_len=4096, changes=spread_over(8)),
)
"""Experts that are spread over ranks (AutoEP); their dry runs need a version of transformers that AutoEP knows."""

_ON_HOST = (("cpu_checkpointing", True),)

INPUTS_ON_HOST = (
    *(
        Case(model=model, strategy=strategy, world_size=8, seq_len=8192, method=method, changes=_ON_HOST)
        for model, strategy, method in product(
            ("llama", "phi3", "qwen3_moe"), ("zero2", "zero3", "zero3-offload"), METHODS
        )
    ),
    Case(model="gpt2", strategy="zero2", world_size=2, micro_batch_size=2, seq_len=2048, changes=_ON_HOST),
    Case(model="0.5B", strategy="zero3", world_size=2, seq_len=32768, changes=_ON_HOST),
    Case(model="7B/8", strategy="zero3-offload", world_size=1, seq_len=32768, changes=_ON_HOST),
    Case(model="7B/8", strategy="zero3", world_size=8, seq_len=131072, changes=(*_ON_HOST, *shared_by(4))),
)
"""Inputs of checkpointed layers that wait on the host."""

TILED = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=seq_len,
            checkpointing=checkpointing,
            method=method,
            mlp="tiled",
            loss="tiled",
        )
        for model, strategy, checkpointing, seq_len, method in product(
            ("llama", "phi3"), ("ddp", "zero2", "zero3-offload"), (True, False), (4096, 32768), METHODS
        )
    ),
    *(
        Case(model="qwen2", strategy=strategy, world_size=2, micro_batch_size=2, seq_len=8192, mlp="tiled")
        for strategy in ("zero1", "zero2-offload", "zero3")
    ),
    *(
        Case(model=model, strategy=strategy, world_size=2, micro_batch_size=2, seq_len=16384, mlp=mlp, loss="tiled")
        for model, strategy, mlp in product(("llama", "phi3"), ("zero1", "zero2-offload", "zero3"), ("whole", "tiled"))
    ),
    Case(model="llama", strategy="zero3", world_size=2, seq_len=16384, gradient_accumulation_steps=2, loss="tiled"),
    Case(model="0.5B", strategy="zero3", world_size=2, seq_len=32768, mlp="tiled"),
    Case(model="7B/8", strategy="zero3", world_size=8, seq_len=65536, mlp="tiled", loss="tiled"),
    Case(
        model="7B/8",
        strategy="zero3-offload",
        world_size=8,
        seq_len=262144,
        mlp="tiled",
        loss="tiled",
        changes=(*_ON_HOST, *shared_by(4)),
    ),
)
"""Feed-forward and loss a tile of the tokens at a time."""

LOSSES = (
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=8192,
            checkpointing=checkpointing,
            method=method,
            loss=loss,
        )
        for loss, model, (strategy, checkpointing), method in product(
            ("chunked-softmax", "chunked-head"),
            ("llama", "gemma2", "7B/8"),
            (("ddp", False), ("zero2", True), ("zero3", True), ("zero3-offload", False)),
            METHODS,
        )
    ),
    *(
        Case(
            model="0.5B", strategy=strategy, world_size=2, micro_batch_size=2, gradient_accumulation_steps=2, loss=loss
        )
        for loss, strategy in product(("chunked-softmax", "chunked-head", "fused"), ("zero1", "zero2-offload", "zero3"))
    ),
    *(
        Case(model="7B/8", strategy="zero3", world_size=8, seq_len=131072, loss=loss, changes=shared_by(4))
        for loss in ("chunked-softmax", "chunked-head", "fused")
    ),
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=8192,
            checkpointing=checkpointing,
            method=method,
            loss="fused",
        )
        for model, (strategy, checkpointing), method in product(
            ("llama", "7B/8"), (("zero2", True), ("zero3", True), ("zero3-offload", False)), METHODS
        )
    ),
)
"""DeepSpeed's, TRL's and Liger's losses."""

SPECIAL = (
    Case(model="0.5B", strategy="ddp", world_size=2),
    Case(model="0.5B", strategy="zero1", world_size=2),
    Case(model="0.5B", strategy="zero1", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", strategy="zero2", world_size=2, micro_batch_size=4),
    Case(model="0.5B", strategy="zero2", world_size=64),
    Case(model="0.5B", strategy="zero2", world_size=8, gradient_accumulation_steps=2, checkpointing=False),
    Case(model="0.5B", strategy="zero2-offload", world_size=2),
    Case(model="0.5B", strategy="zero2-offload", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", strategy="zero3", world_size=2),
    Case(model="0.5B", strategy="zero3", world_size=8, checkpointing=False, micro_batch_size=4),
    Case(model="0.5B", strategy="zero3-offload", world_size=1),
    Case(model="0.5B", strategy="zero3-offload", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", strategy="zero2", world_size=2, method="lora"),
    Case(model="0.5B", strategy="zero3", world_size=8, method="lora"),
    Case(model="7B/8", strategy="zero2", world_size=8),
    Case(model="7B/8", strategy="zero2", world_size=2, changes=(("reduce_bucket_size", 500_000_000),)),
    Case(model="7B/8", strategy="zero2-offload", world_size=2),
    Case(model="7B/8", strategy="zero3", world_size=8),
    Case(model="7B/8", strategy="zero3", world_size=8, checkpointing=False),
    Case(
        model="7B/8",
        strategy="zero3",
        world_size=64,
        changes=(("stage3_max_live_parameters", 300_000_000), ("stage3_max_reuse_distance", 300_000_000)),
    ),
    Case(model="7B/8", strategy="zero3-offload-param", world_size=8),
    Case(model="7B/8", strategy="zero3-offload", world_size=2, gradient_accumulation_steps=2),
    Case(model="7B/8", strategy="zero3-nvme", world_size=8),
    Case(model="qwen2", strategy="zero3-offload", world_size=2, changes=partly_offloaded(0.5)),
    Case(model="llama", strategy="zero3-offload", world_size=2, checkpointing=False, changes=partly_offloaded(0.25)),
    Case(model="llama", strategy="zero3-offload", world_size=2, seq_len=512, changes=partly_offloaded(0.1, 60_000_000)),
    Case(model="gpt2", strategy="zero3-offload", world_size=8, changes=partly_offloaded(0.0)),
    Case(
        model="phi3",
        strategy="zero3-offload",
        world_size=2,
        changes=(*partly_offloaded(0.7, 5_000_000), ("offload_param", "none")),
    ),
    Case(model="0.5B", strategy="zero3-offload", world_size=1, changes=partly_offloaded(0.5, 100_000_000)),
    Case(
        model="7B/8",
        strategy="zero3-offload",
        world_size=8,
        gradient_accumulation_steps=2,
        changes=partly_offloaded(0.5, 100_000_000),
    ),
    *(
        Case(
            model=model,
            strategy=strategy,
            world_size=8,
            seq_len=2048,
            checkpointing=checkpointing,
            changes=live(60_000_000),
        )
        for model in GRID_FAMILIES
        for strategy in ("zero3", "zero3-offload")
        for checkpointing in (True, False)
    ),
    # Parameters that really are on NVMe: host memory takes none of them.
    *(
        Case(model=model, strategy=strategy, world_size=2, gradient_accumulation_steps=2, precision=precision)
        for model in ("qwen2", "llama", "gpt2")
        for strategy in STRATEGIES
        for precision in ("bf16", "fp16")
    ),
    *(
        Case(
            model=model,
            strategy="zero3-nvme",
            world_size=8,
            seq_len=2048,
            checkpointing=checkpointing,
            changes=(("param_max_in_cpu", 1_000_000),),
        )
        for model in GRID_FAMILIES
        for checkpointing in (True, False)
    ),
    *SEQUENCE_PARALLEL,
    *STATES_IN_BF16,
    *SECOND_COPIES,
    *QUANTIZED,
    *COPIES_TRAINED,
    *LAYERS_SPLIT,
    *INPUTS_ON_HOST,
    *TILED,
    *LOSSES,
    *(
        Case(model=model, strategy=strategy, world_size=8, seq_len=512, checkpointing=checkpointing, method=method)
        for model in ENCODERS
        for strategy in STRATEGIES
        for checkpointing in (True, False)
        for method in METHODS
    ),
    *(
        Case(model=model, strategy=strategy, world_size=8, seq_len=512, checkpointing=checkpointing)
        for model in MIXED
        for strategy in STRATEGIES
        for checkpointing in (True, False)
    ),
)


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` of the cases as a fixed pseudorandom sample; a larger count includes a smaller one."""
    return sorted(cases, key=lambda case: crc32(case.name.encode()))[:count]
