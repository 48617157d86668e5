"""Parameter groups of the optimizer. ZeRO flattens, partitions and steps each of them by itself.

The Trainer's own optimizer has two: weights, and biases and norms, which do not decay. With an `optimizer` block there
is one, because the Trainer passes a list of parameters to DeepSpeed; likewise in a loop that passes
`model.parameters()`. An empty group, as with adapters, is dropped.

Source: transformers 5.24 trainer.py `create_optimizer`, `get_decay_parameter_names`, integrations/deepspeed.py
`deepspeed_optim_sched`; accelerate 1.15 utils/deepspeed.py `map_pytorch_optim_to_deepspeed`, which keeps the groups;
deepspeed 0.19.8 runtime/engine.py `_configure_optimizer`. Not covered: groups of a script's own, those of Muon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .models.model_shape import NormKind, Tensor
from .objectives import OBJECTIVES
from .optimizers import optimizer
from .plan import Plan
from .workload import Workload

_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of tensors without weight decay (`get_decay_parameter_names`)."""


def script_makes_adam(workload: Workload, plan: Plan) -> bool:
    """Return whether the emitted configuration leaves Adam to the training script. With its states in host RAM it is
    DeepSpeed's."""
    has_torch_adam = workload.software.optimizer_step != "auto" and optimizer(workload.optimizer).is_adam
    return has_torch_adam and plan.offload_optimizer == "none"


def emits_optimizer_block(workload: Workload, plan: Plan) -> bool:
    """Return whether the emitted configuration has an `optimizer` block. Without one the training script makes the
    optimizer. Raises WorkloadError for an unknown optimizer."""
    by_script = script_makes_adam(workload, plan) or OBJECTIVES[workload.objective].value_model
    return bool(optimizer(workload.optimizer).block_type) and not by_script


def has_decay_groups(workload: Workload, plan: Plan) -> bool:
    """Return whether biases and norms are a group of their own. Raises WorkloadError for an unknown optimizer."""
    if not workload.uses_trainer:
        return False
    has_block = workload.optimizer_block
    return not (emits_optimizer_block(workload, plan) if has_block is None else has_block)


def without_decay(tensors: Iterable[Tensor], norm: NormKind) -> tuple[bool, ...]:
    """Return for each tensor of a module whether the Trainer excludes it from weight decay: by its name, or because it
    belongs to an `nn.LayerNorm`. norm: kind of the module's norms."""
    tensors = tuple(tensors)
    names = {tensor.name for tensor in tensors}

    def in_layer_norm(tensor: Tensor) -> bool:
        """Return whether it is the scale of an `nn.LayerNorm`: it has a shift, unless all of the model's have none."""
        has_shift = tensor.name.removesuffix("weight") + "bias" in names
        return len(tensor.shape) == 1 and (has_shift or (tensor.role == "norm" and norm == "layer"))

    return tuple(bool(_WITHOUT_DECAY.search(tensor.name.lower())) or in_layer_norm(tensor) for tensor in tensors)
