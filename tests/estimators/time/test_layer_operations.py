"""What ZeRO-3 hooks, by the closed form and by DeepSpeed's own rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.utils import z3_leaf_module
from deepspeed.utils.z3_leaf_module import apply_zero_leaf_module_config
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.lora import adapters
from ds_advise.estimators.time.host_time import layer_operations
from ds_advise.estimators.workload import Software, Workload
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP

from tests.estimators.small_models import TEXT

SIZES = TEXT | {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("model_type", ["llama", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_modules_are_hooked_as_deepspeed_hooks_them(model_type: str) -> None:
    """Of a mixture of experts that is a leaf by default nothing but itself."""
    config = {"model_type": model_type, **SIZES}
    more, fewer = (hooked_modules({**config, "num_hidden_layers": layers}) for layers in (3, 2))
    shape, workload = shape_from_config({**config, "num_hidden_layers": 3}, name=model_type), Workload()
    operations = layer_operations(shape, shape.blocks[0], workload, adapters(shape, workload))
    assert operations.hooked == more - fewer


def hooked_modules(config: dict[str, Any]) -> int:
    """How many modules of the model DeepSpeed comes by: it does not look into a leaf."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    apply_zero_leaf_module_config(model, DeepSpeedZeroLeafModuleConfig())

    def count(module: nn.Module) -> int:
        return 1 + (0 if z3_leaf_module(module) else sum(map(count, module.children())))

    return count(model)


class ExpertModules(nn.Module):
    """A mixture as transformers 4.51 has it: a list of experts, in a loop."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        width = config.moe_intermediate_size
        self.experts = nn.ModuleList([Qwen3MoeMLP(config, intermediate_size=width) for _ in range(config.num_experts)])


@pytest.mark.parametrize(("deepspeed", "leaf"), [((0, 16), False), ((0, 18), True)])
def test_every_module_of_an_expert_is_hooked_unless_the_mixture_is_a_leaf(
    monkeypatch: pytest.MonkeyPatch, deepspeed: tuple[int, int], *, leaf: bool
) -> None:
    """DeepSpeed makes it a leaf by its class since 0.18."""
    mixture = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock if leaf else None
    named = type("Qwen3MoeSparseMoeBlock", (ExpertModules,), {"__module__": mixture.__module__ if mixture else "own"})
    monkeypatch.setattr(modeling_qwen3_moe, "Qwen3MoeSparseMoeBlock", named)
    config = {"model_type": "qwen3_moe", **SIZES, "decoder_sparse_step": 1}
    more, fewer = (hooked_modules({**config, "num_hidden_layers": layers}) for layers in (3, 2))
    shape = shape_from_config({**config, "num_hidden_layers": 3}, name="qwen3_moe")
    workload = Workload(software=Software(transformers=(4, 51), deepspeed=deepspeed))
    operations = layer_operations(shape, shape.blocks[0], workload, adapters(shape, workload))
    # Of the list itself, which is never called, DeepSpeed's hooks do not run.
    assert operations.hooked == more - fewer - (0 if leaf else 1)
