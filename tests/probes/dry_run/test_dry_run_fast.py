"""`--fast`: where shallow runs answer for a deep model, where they do not, and that nothing of it is silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run import DryRunResult, dry_run
from ds_advise.probes.dry_run.extrapolate import DepthNotLinearError, DepthSeries, depth_series, extrapolated
from ds_advise.probes.dry_run.run import request_for
from ds_advise.probes.run import Request, Run

from tests.helpers import ask_forks, h100s

LAYERS = 14
"""As few as shallow models are worth while for."""
TINY: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}
ZERO3 = {
    "stage": 3,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}


def asked(model: dict[str, Any] | str = TINY, *, zero: dict[str, Any] | None = None, **more: Any) -> Request:
    config = {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": zero or ZERO3,
    }
    return request_for(
        Run(config=config, model=model, workload=Workload(seq_len=64), cluster=h100s(2)), iterations=2, **more
    )


Runs = tuple[DepthSeries, list[DryRunResult], DryRunResult]
ON_CPU = {"device": "cpu", "pin_memory": True}
ON_NVME = {"device": "nvme", "nvme_path": "/nowhere", "pin_memory": True}
PLACES: dict[str, dict[str, Any]] = {
    "gpu": {},
    "cpu": {"offload_optimizer": ON_CPU, "offload_param": ON_CPU},
    "nvme": {"offload_optimizer": ON_NVME, "offload_param": {**ON_NVME, "max_in_cpu": 100_000}},
}
OFFLOADED = [pytest.param(place, marks=pytest.mark.slow) for place in ("cpu", "nvme")]


@pytest.fixture(scope="module")
def runs_on() -> Callable[[str], Runs]:
    """A model whose optimizer steps sub-group by sub-group, at three depths, initialized and whole: on the GPU, or with
    optimizer and parameters in page-locked host memory or on NVMe."""

    @cache
    def runs_on(place: str) -> Runs:
        request = asked(zero={**ZERO3, "sub_group_size": 700_000, **PLACES[place]})
        steps = depth_series(request)
        *shallow, full = ask_forks([*steps.requests, request])
        return steps, shallow, full

    return runs_on


@pytest.fixture(scope="module")
def runs(runs_on: Callable[[str], Runs]) -> Runs:
    return runs_on("gpu")


@pytest.mark.parametrize("place", ["gpu", *OFFLOADED])
def test_every_phase_is_as_at_full_depth(runs_on: Callable[[str], Runs], place: str) -> None:
    """GPU, host and total, live and peak, of each phase of each iteration: within half a percent of the run's peak;
    before training to the byte."""
    steps, shallow, full = runs_on(place)
    fast = extrapolated(steps, shallow)
    assert fast.extrapolated_from == steps.depths and not full.extrapolated_from
    assert fast.parameters == full.parameters and fast.trainable_parameters == full.trainable_parameters
    for one, other in zip(fast.phases, full.phases, strict=True):
        assert (one.iteration, one.phase) == (other.iteration, other.phase)
        assert one.iteration or one == other
        for pool in ("gpu", "host", "total"):
            for figure in ("live", "peak"):
                name = f"{pool}_{figure}_bytes"
                if one.phase not in fast.approximate:
                    assert getattr(one, name) == pytest.approx(
                        getattr(other, name), abs=0.005 * full.peak.allocated_bytes_per_gpu
                    ), (one.iteration, one.phase, name)
    assert fast.peak.allocated_bytes_per_gpu == pytest.approx(full.peak.allocated_bytes_per_gpu, rel=0.005)


@pytest.mark.parametrize("place", OFFLOADED)
def test_page_locked_blocks_are_those_of_the_full_depth(runs_on: Callable[[str], Runs], place: str) -> None:
    """What the host gives, blocks rounded up to powers of two, to a kibibyte in every phase; no line through shallow
    models would meet it. So is what is on NVMe."""
    steps, shallow, full = runs_on(place)
    assert extrapolated(steps, shallow).nvme_bytes_per_rank == pytest.approx(full.nvme_bytes_per_rank, abs=4096)
    for one, other in zip(extrapolated(steps, shallow).phases, full.phases, strict=True):
        assert one.host_pinned_peak_bytes == other.host_pinned_peak_bytes
        assert one.host_held_peak_bytes == pytest.approx(other.host_held_peak_bytes, abs=1024)
    assert max(phase.host_pinned_peak_bytes for phase in full.phases) > 0


def test_the_extrapolated_peak_still_adds_up(runs: Runs) -> None:
    """By category, near the full run's parts; what cannot be extrapolated is absent."""
    steps, shallow, full = runs
    peak = extrapolated(steps, shallow).peak
    assert (peak.phase, sum(peak.by_category.values())) == (full.peak.phase, peak.allocated_bytes_per_gpu)
    for name, size_bytes in full.peak.by_category.items():
        assert peak.by_category[name] == pytest.approx(size_bytes, abs=0.01 * full.peak.allocated_bytes_per_gpu)
    assert not peak.by_module and not peak.largest
    assert peak.required_bytes_per_gpu >= peak.allocated_bytes_per_gpu


def test_figures_off_the_line_are_refused(runs: Runs) -> None:
    """One depth whose backward pass holds a little more than the others promise."""
    steps, shallow, _ = runs
    phases = tuple(
        replace(phase, gpu_peak_bytes=phase.gpu_peak_bytes * 6 // 5) if phase.phase == "backward" else phase
        for phase in shallow[1].phases
    )
    with pytest.raises(DepthNotLinearError, match=r"do not lie on a line \(gpu_peak_bytes of backward\)"):
        extrapolated(steps, [shallow[0], replace(shallow[1], phases=phases), *shallow[2:]])


def test_page_locked_memory_that_training_adds_is_refused(runs: Runs) -> None:
    """Where it grows with the depth: how its blocks round up no shallow model tells."""
    steps, shallow, _ = runs
    phases = tuple(
        replace(phase, host_pinned_peak_bytes=1) if phase.iteration else phase for phase in shallow[0].phases
    )
    with pytest.raises(DepthNotLinearError, match="page-locked"):
        extrapolated(steps, [replace(shallow[0], phases=phases), *shallow[1:]])


def test_depths_fill_what_has_a_fixed_size_first() -> None:
    """Qwen2.5-14B's gathered parameters reach stage3_max_live_parameters with the sixth layer."""
    assert depth_series(asked(catalogue.config("Qwen/Qwen2.5-14B"))).depths == (6, 7, 9)


def test_a_piece_holds_the_embedding_twice_at_all_depths_or_lies_within_it_at_all() -> None:
    """A rank's part of Llama 3.1 8B on 4 GPUs is that large from 15 layers on, on 64 never, and on 8 it is in
    between."""
    llama, zero = catalogue.config("meta-llama/Llama-3.1-8B"), {"stage": 2, "reduce_bucket_size": "auto"}
    assert depth_series(replace(asked(llama, zero=zero), world_size=4)).depths[0] == 15
    assert depth_series(replace(asked(llama, zero=zero), world_size=64)).depths[0] < 8
    with pytest.raises(DepthNotLinearError, match="hardly larger than the embedding"):
        depth_series(replace(asked(llama, zero=zero), world_size=8))


def test_whole_periods_are_left_out() -> None:
    """Gemma 2 alternates two kinds of layers: the shallow models end as the full one does."""
    steps = depth_series(asked(catalogue.config("google/gemma-2-9b"), zero={"stage": 2, "reduce_bucket_size": "auto"}))
    assert all((steps.full - depth) % 2 == 0 for depth in steps.depths)
    assert len({depth % 2 for depth in steps.depths}) == 1


def test_lists_with_an_entry_for_each_layer_are_cut() -> None:
    types = ["full_attention"] * LAYERS
    steps = depth_series(asked({**TINY, "layer_types": types}))
    assert [len((request.model or {})["layer_types"]) for request in steps.requests] == [*steps.depths, LAYERS]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked({**TINY, "num_hidden_layers": 6}), "6 layers are few enough"),
        (asked({**TINY, "model_type": "bert"}), "not been shown for bert"),
        (asked({key: value for key, value in TINY.items() if key != "num_hidden_layers"}), "how many layers"),
        (asked(zero={"stage": 2, "reduce_bucket_size": "auto"}, rank=1), "only rank 0"),
        (asked(zero={**ZERO3, "offload_param": {**ON_NVME, "max_in_cpu": 2_500_000}}), "take as long"),
        (asked(zero={**ZERO3, "offload_param": {"device": "disk"}}), "for DeepSpeed to judge"),
        (asked(zero={**ZERO3, "offload_optimizer": {"device": "cpu", "ratio": 0.7}}), "whole sub-groups"),
        (asked(zero={"stage": "three"}), "for DeepSpeed to judge"),
        (asked(zero={**ZERO3, "stage3_max_live_parameters": "many"}), "for DeepSpeed to judge"),
        (replace(asked(), model=None, factory="own.py:net"), "module of one's own"),
        (asked({**TINY, "layer_types": [str(index) for index in range(LAYERS)]}), "do not repeat"),
    ],
)
def test_what_shallow_models_cannot_answer_says_why(request_: Request, reason: str) -> None:
    with pytest.raises(DepthNotLinearError, match=reason):
        depth_series(request_)


def test_a_refusal_is_part_of_the_answer(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    """The full depth is run instead, and the result says why."""
    asked_for: list[int] = []

    def full_only(requests: list[Request], _timeout_s: float) -> list[DryRunResult]:
        asked_for.append(len(requests))
        return [runs[2]]

    monkeypatch.setattr("ds_advise.probes.dry_run.run.ask", full_only)
    result = dry_run(
        Run(config={"zero_optimization": ZERO3}, model={**TINY, "num_hidden_layers": 6}, cluster=h100s(2)), fast=True
    )
    assert asked_for == [1] and "6 layers are few enough" in result.not_extrapolated and not result.extrapolated_from
