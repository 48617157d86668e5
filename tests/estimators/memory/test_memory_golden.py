"""The closed form against recorded dry runs of the real engine: live bytes on the fullest GPU at the peak of training.

Without torch and in a second: full depth, fp32, DeepSpeed's own bucket sizes, buckets that fill. Shallow models of many
families are run live by `test_analytic_vs_dry_run`.

Recorded with torch 2.13.0, deepspeed 0.19.8, transformers 5.23.0: `deepspeed.initialize`, backward and step on fake
tensors, as ranks of N under a fake process group, FusedAdam and DeepSpeedCPUAdam without their kernels, flash
attention, the largest of the ranks that matter. No cuBLAS workspaces. Tolerance 3 %: what the closed form rounds off
are fractions of a layer's activations and of a prefetch bucket; where it is exact, 0.3 % allows for the rotary tables
and scalars.
"""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.estimators.estimate import MemoryEstimate
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.host_memory import PROCESS_BYTES
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload

from tests.estimators.small_models import Config, sizes, small


def qwen2(*dimensions: int, tied: bool) -> Config:
    base = sizes(*dimensions, max_position_embeddings=32768)
    return small("qwen2", base, architectures=["Qwen2ForCausalLM"], tie_word_embeddings=tied)


def qwen3_moe(*dimensions: int, inner: int, head: int, experts: int, chosen: int) -> Config:
    fields = {"moe_intermediate_size": inner, "head_dim": head, "num_experts": experts, "num_experts_per_tok": chosen}
    named = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
    return qwen2(*dimensions, tied=False) | named | fields


MODELS = {
    "toy": qwen2(1024, 2816, 4, 16, 4, 32000, tied=False),
    "toy tied": qwen2(1024, 2816, 4, 16, 4, 32000, tied=True),
    "0.5B": qwen2(896, 4864, 24, 14, 2, 151936, tied=True),
    "1.5B": qwen2(1536, 8960, 28, 12, 2, 151936, tied=True),
    "6B": qwen2(4096, 11008, 32, 32, 8, 32000, tied=False),
    # Matrices that exceed a prefetch bucket, five of which fill a bucket of gradients.
    "wide": qwen2(2560, 43040, 4, 8, 4, 32768, tied=True),
    # peft's adapters go into the fused experts and the router too.
    "experts": qwen3_moe(1024, 2048, 4, 16, 4, 8192, inner=512, head=64, experts=32, chosen=4),
    # One of its tensors is a third of what may be gathered.
    "huge experts": qwen3_moe(2048, 2048, 4, 16, 4, 32000, inner=5632, head=128, experts=16, chosen=2),
}
TOY = {
    "reduce_bucket_size": 4_000_000,
    "stage3_prefetch_bucket_size": 4_000_000,
    "stage3_param_persistence_threshold": 10_000,
}
DEFAULTS = {
    "reduce_bucket_size": 50_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
}
CPU = {"offload_optimizer": "cpu"}
BOTH = {"offload_optimizer": "cpu", "offload_param": "cpu"}


def auto(hidden: int) -> dict[str, int]:
    """What the Trainer fills in for `auto`."""
    return {
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
    }


SHORT, LONG, ADAPTED = Workload(seq_len=128), Workload(seq_len=1024), Workload(seq_len=1024, method="lora")
SAVED = {"gradient_checkpointing": False}
FILLED = {"gradient_accumulation_steps": 2, "reduce_bucket_size": 50_000_000}
ROWS: list[tuple[str, int, int, dict[str, Any], Workload, int, float]] = [
    ("toy", 0, 4, TOY, SHORT, 2_655_365_632, 0.003),
    ("toy", 0, 4, TOY, Workload(seq_len=128, precision="fp32"), 2_212_805_632, 0.003),
    ("toy", 1, 4, TOY, SHORT, 840_020_480, 0.003),
    ("toy", 1, 4, {**TOY, "overlap_comm": False}, SHORT, 895_221_248, 0.003),
    ("toy", 1, 4, {**TOY, "gradient_accumulation_steps": 2}, SHORT, 903_012_352, 0.03),
    ("toy", 2, 4, {**TOY, "gradient_accumulation_steps": 2}, SHORT, 860_475_904, 0.01),
    ("toy", 2, 4, {**TOY, "reduce_bucket_size": 60_000_000}, SHORT, 1_010_812_928, 0.003),
    ("toy", 2, 4, {**TOY, **CPU}, SHORT, 589_636_608, 0.003),
    ("toy", 2, 4, TOY, Workload(seq_len=128, method="lora"), 274_968_576, 0.003),
    ("toy", 3, 4, TOY, SHORT, 747_983_872, 0.003),
    ("toy", 3, 64, TOY, SHORT, 333_083_648, 0.005),
    ("toy", 3, 4, {**TOY, **CPU}, SHORT, 368_412_672, 0.003),
    ("toy", 3, 4, {**TOY, **BOTH}, SHORT, 313_092_608, 0.003),
    ("toy tied", 3, 4, TOY, SHORT, 581_668_352, 0.003),
    ("0.5B", 2, 2, auto(896), LONG, 5_936_520_704, 0.003),
    ("0.5B", 3, 2, auto(896), LONG, 6_861_670_400, 0.003),
    ("1.5B", 3, 8, SAVED, LONG, 11_100_804_608, 0.03),
    ("1.5B", 1, 8, {"gradient_accumulation_steps": 2}, LONG, 12_459_679_232, 0.003),
    # Layers are reduced while nearly all of their activations and of the earlier gradients are alive.
    ("0.5B", 1, 2, FILLED | SAVED, Workload(seq_len=1024, loss="fused"), 7_028_865_024, 0.006),
    ("6B", 3, 8, auto(4096), LONG, 16_350_157_824, 0.003),
    ("6B", 3, 4, {**auto(4096), **CPU}, LONG, 5_781_988_864, 0.03),
    ("6B", 3, 2, {**auto(4096), **BOTH}, LONG, 3_143_015_936, 0.03),
    ("6B", 3, 2, auto(4096), Workload(seq_len=1024, method="lora", lora_rank=16), 8_998_367_232, 0.01),
    ("experts", 2, 2, TOY, ADAPTED, 727_634_944, 0.03),
    ("experts", 2, 2, TOY | SAVED, ADAPTED, 1_237_900_800, 0.003),
    ("experts", 3, 2, TOY, ADAPTED, 981_665_792, 0.03),
    ("huge experts", 3, 8, DEFAULTS | SAVED, LONG, 12_066_081_280, 0.03),
    ("huge experts", 3, 8, DEFAULTS, LONG, 8_253_601_792, 0.04),
    ("huge experts", 3, 8, DEFAULTS | SAVED, ADAPTED, 8_561_085_952, 0.045),
    ("huge experts", 3, 8, SAVED, LONG, 12_968_602_112, 0.03),
    ("wide", 3, 4, {"micro_batch_size": 4}, Workload(seq_len=2048), 13_934_927_872, 0.02),
    ("wide", 2, 4, {"micro_batch_size": 4}, Workload(seq_len=2048), 15_375_648_768, 0.01),
]


def predicted(model: str, ranks: int, workload: Workload, **settings: Any) -> MemoryEstimate:
    shape = shape_from_config(MODELS[model], name=model)
    cluster = Cluster(nodes=1, gpus_per_node=ranks, gpu=find_gpu("H100-80GB"))
    return estimate_memory(shape, workload, cluster, Plan(**{"micro_batch_size": 1, **settings}))


@pytest.mark.parametrize(("model", "stage", "ranks", "settings", "workload", "measured", "tolerance"), ROWS)
def test_gpu_peak_is_that_of_the_dry_run(
    model: str, stage: Any, ranks: int, settings: dict[str, Any], workload: Workload, measured: int, tolerance: float
) -> None:
    """Peak of live tensors while training, without library workspaces, within the row's tolerance."""
    estimate = predicted(model, ranks, workload, zero_stage=stage, **settings)
    peak = max(
        sum(term.size_bytes for term in phase.terms if term.name != "library_workspace")
        for phase in estimate.phases
        if phase.name != "initialize"
    )
    assert peak == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    ("model", "stage", "ranks", "settings", "measured_per_rank"),
    [
        ("toy", 2, 4, CPU, 563_417_088),
        ("toy", 3, 4, {**CPU, **TOY}, 497_881_600),
        ("toy", 3, 4, {**BOTH, **TOY}, 553_201_664),
        ("6B", 2, 2, CPU, 53_661_897_216),
        ("6B", 3, 2, {**BOTH, **auto(4096)}, 59_333_059_584),
    ],
)
def test_host_bytes_are_those_of_the_dry_run(
    model: str, stage: Any, ranks: int, settings: dict[str, Any], measured_per_rank: int
) -> None:
    """What a rank keeps on the host when nothing is rounded to pinned blocks, to the alignment of storages."""
    estimate = predicted(model, ranks, Workload(), zero_stage=stage, pin_memory=False, **settings)
    assert estimate.host_training_bytes_per_node / ranks - PROCESS_BYTES == pytest.approx(measured_per_rank, rel=1e-4)
