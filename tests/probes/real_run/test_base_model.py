"""What a probe makes of a model before it trains, where the rest of the probe would hide a mistake."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run import models
from ds_advise.probes.real_run import training as base_model
from ds_advise.probes.run import Run

from tests.helpers import SMALL_LLAMA, h100s


def prepare(model: torch.nn.Module, **workload: Any) -> None:
    base_model.prepare_base(model, Workload(**workload), torch.bfloat16, "cpu", has_weights=False)


def test_weights_without_values_get_some() -> None:
    """Of the size that trained ones have, with rows that differ; a rank's shard too."""
    model = torch.nn.ModuleList([torch.nn.Linear(2048, 1024, dtype=torch.bfloat16), torch.nn.Linear(8, 8)])
    shard = torch.full((3_000_000,), torch.nan)
    model[1].weight.ds_tensor = shard
    torch.nn.init.constant_(model[0].weight, torch.nan)
    prepare(model)
    for values in (model[0].weight.detach().float(), shard):
        assert 0.019 < values.std() < 0.021
        assert abs(values.mean()) < 0.001
    assert not torch.equal(model[0].weight[0], model[0].weight[1])


def test_a_missing_library_of_a_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bitsandbytes there is no QLoRA."""

    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # importing it is an ImportError
    with pytest.raises(models.UnusableModelError, match="QLoRA needs bitsandbytes"):
        prepare(torch.nn.Linear(8, 8), method="qlora")


def test_a_dry_run_refuses_kernels_that_it_does_not_know() -> None:
    """It would show the memory of another training."""
    run = Run(config={}, model=SMALL_LLAMA, cluster=h100s(1), workload=Workload(method="qlora"))
    with pytest.raises(models.UnusableModelError, match="a dry run does not support"):
        models.from_config(run, models.transformers_config(run.description or {}), torch.bfloat16, "cpu")
