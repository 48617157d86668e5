"""Features that no plan holds are recognised, and nothing is said of configurations without them."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.ds_configs.read import unmodeled_features
from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import find_gpu
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run.ask import DryRunError, NeedsValuesError
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

OFFLOAD: dict[str, Any] = {"device": "cpu"}
FEATURES: list[tuple[str, dict[str, Any]]] = [
    ("ZenFlow", {"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOAD, "zenflow": {}}}),
    ("SuperOffload", {"zero_optimization": {"stage": 3, "offload_optimizer": OFFLOAD | {"super_offload": True}}}),
    ("DeepCompile", {"zero_optimization": {"stage": 3}, "compile": {"deepcompile": True}}),
    ("torch_autocast", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    (
        "AutoEP",
        {
            "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
            "expert_parallel": {"enabled": True, "autoep_size": 2},
        },
    ),
]


@pytest.mark.parametrize(("name", "config"), FEATURES)
def test_a_feature_is_recognised(name: str, config: dict[str, Any]) -> None:
    [found] = unmodeled_features(config)
    assert found.name == name


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOAD | {"super_offload": True}}},
        {"zero_optimization": "auto", "compile": {"deepcompile": False}, "expert_parallel": {"enabled": False}},
    ],
)
def test_what_is_off_or_ignored_is_not_named(config: dict[str, Any]) -> None:
    assert not list(unmodeled_features(config))


@pytest.mark.parametrize(("name", "config"), [each for each in FEATURES if each[0] != "DeepCompile"])
def test_a_dry_run_says_beforehand_what_it_cannot_run(name: str, config: dict[str, Any]) -> None:
    """AutoEP with the transformers that is installed cannot run at all; a probe can tell of the others."""
    cluster = Cluster(nodes=1, gpus_per_node=2, gpu=find_gpu("H100-80GB"))
    run = Run(config=config, model={"model_type": "qwen3_moe"}, workload=Workload(), cluster=cluster)
    with pytest.raises(DryRunError, match=name) as refused:
        dry_run(run)
    assert isinstance(refused.value, NeedsValuesError) or "install transformers 5.8" in refused.value.fix
