"""The category of a storage: estimated at allocation from the allocating code, corrected by a sweep over its owners.

Categories: parameters, gradients, master weights, optimizer states, buckets, gathered parameters, activations, logits,
temporaries. At allocation the gradients of weights and of activations look alike, so after each phase a sweep over the
module, the engine and the optimizers assigns the categories of the storages that they hold. A category from a sweep or
a gradient hook is final. Storages that are freed between two sweeps keep their estimated category.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import torch

_BIRTHPLACES = (
    ("runtime/zero/partition_parameters.py", "gather wait", "gathered parameters"),
    ("runtime/zero/partition_parameters.py", "reduce", "buckets"),
    ("runtime/zero/partition_parameters.py", "", "parameters"),
    ("runtime/zero/partitioned_param_coordinator.py", "", "gathered parameters"),
    ("runtime/zero/stage3.py", "norm", "temporaries"),
    ("runtime/zero/stage3.py", "grad", "gradients"),
    ("runtime/zero/stage3.py", "fp32", "master weights"),
    ("runtime/zero/stage3.py", "create_fp16", "parameters"),
    ("runtime/zero/stage3.py", "bucket reduce avg", "buckets"),
    ("runtime/zero/stage_1_and_2.py", "bucket reduce average", "buckets"),
    ("runtime/zero/stage_1_and_2.py", "norm", "temporaries"),
    ("runtime/zero/stage_1_and_2.py", "grad", "gradients"),
    ("runtime/swap_tensor/", "", "buckets"),
    ("deepspeed/ops/", "step", "optimizer states"),
)
"""(part of the file name, parts of the function name ("": any function), category); the first match in the innermost
frame is used."""

_OWNED = {  # category -> attributes of a DeepSpeed optimizer, of any version
    "master weights": """single_partition_of_fp32_groups fp32_partitioned_groups_flat fp32_groups_flat_partition
        fp32_groups_flat""",
    "parameters": """bit16_groups_flat bf16_groups_flat fp16_groups_flat fp16_partitioned_groups_flat
        param_groups_fp16_flat_cpu_memory lp_param_contiguous_pin_buffer""",
    "gradients": """averaged_gradients all_grad_tensors grad_partitions_flat_buffer fp32_groups_gradients_flat
        fp32_groups_gradients accumulated_grads_in_cpu _DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition""",
    "buckets": """ipg_buckets ipg_buffer temp_grad_buffer_for_gpu_offload temp_grad_buffer_for_cpu_offload
        param_buffer_of_bit16_for_cpu_offload_groups _DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat_buffer""",
}


class AllocationClassifier:
    """Classifies the storages of a training run."""

    def __init__(self) -> None:
        self.vocab_size = 0
        """Size of the vocabulary: a tensor of the forward or backward pass with this last dimension is logits; 0 for a
        model without logits."""
        self.weight_shapes: frozenset[tuple[int, ...]] = frozenset()
        """Shapes of the weights: in the backward pass a matrix with such a shape is a gradient, unless it has `tokens`
        rows."""
        self.tokens = 0
        self.phase = "load"
        self._module_names: dict[int, str] = {}
        self._module_stack: list[str] = []
        self._sequence_starts: list[int] = []
        self._sequence_modules: list[str] = []
        self._code_category: dict[Any, str] = {}

    def classify(self, tensor: torch.Tensor) -> tuple[str, str]:
        """(category, module) of a storage at its allocation."""
        category = self._birthplace()
        if not category:
            if self.phase in ("load", "initialize"):
                category = "parameters" if self.phase == "load" else "temporaries"
            elif self.vocab_size and tensor.dim() and tensor.shape[-1] == self.vocab_size:
                category = "logits"
            elif self.phase == "forward" or (self.phase == "backward" and self._module_stack):
                category = "activations"  # in the backward pass a module runs forward for recomputation only
            elif tensor.dim() > 1 and tuple(tensor.shape) in self.weight_shapes and tensor.shape[0] != self.tokens:
                category = "gradients"  # not delivered by autograd yet
            else:
                category = "temporaries"
        return category, self._module()

    def _birthplace(self) -> str:
        # Skips the frames of the classifier, the ledger and the dispatch mode above the operation.
        frame = sys._getframe(5)
        # Keyed by code object: a run has millions of allocations and some thousand functions.
        known = self._code_category
        while frame is not None:
            code = frame.f_code
            category = known.get(code)
            if category is None:
                category = known[code] = _allocation_category(code.co_filename, code.co_name)
            if category:
                return category if category != "-" else ""
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def _module(self) -> str:
        if self._module_stack:
            return self._module_stack[-1]
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            if node is not None:
                # Sequence numbers grow in the forward pass, so a node belongs to the last module that began before.
                at = bisect_right(self._sequence_starts, node._sequence_nr()) - 1
                return self._sequence_modules[at] if at >= 0 else ""
        return ""

    def watch_modules(self, model: torch.nn.Module, *, first: bool = True) -> None:
        """Track the running modules by name. first: whether no other model is watched."""
        self._module_names |= {id(module): name for name, module in model.named_modules()}
        if not first:
            return

        def enter(module: torch.nn.Module, _inputs: Any) -> None:
            name = self._module_names.get(id(module))
            if name is not None:
                self._module_stack.append(name)
                self._mark()

        def leave(module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
            if id(module) in self._module_names and self._module_stack:
                self._module_stack.pop()
                self._mark()

        # Global hooks run before those of modules, in which DeepSpeed gathers weights.
        torch.nn.modules.module.register_module_forward_pre_hook(enter)
        # always_call: the stack stays correct when recomputation stops early by an exception.
        torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)

    def _mark(self) -> None:
        """Assign the next autograd nodes to the module on top of the stack."""
        self._sequence_starts.append(torch._C._autograd._get_sequence_nr())
        self._sequence_modules.append(self._module_stack[-1] if self._module_stack else "")

    def begin(self, phase: str) -> None:
        self.phase = phase
        self._module_stack.clear()
        if phase == "forward":
            self._sequence_starts.clear()
            self._sequence_modules.clear()


def _allocation_category(filename: str, function: str) -> str:
    """Category of allocations in a code object; "-" ends the search of outer frames."""
    if "deepspeed" not in filename:
        if filename.endswith("torch/nn/modules/module.py") and function == "_call_impl":
            return "-"  # the allocation belongs to the model, not to the module's caller
        return ""
    for file_part, function_parts, category in _BIRTHPLACES:
        if file_part in filename and any(part in function for part in function_parts.split() or ("",)):
            return category
    return ""


def owners(module: torch.nn.Module, optimizer: Any) -> Iterator[tuple[torch.Tensor, str, str]]:
    """(tensor, category, parameter's name) of all tensors of the module and the optimizers."""
    for name, parameter in module.named_parameters():
        # Under ZeRO-3 the parameter holds memory only while it is gathered.
        shard = getattr(parameter, "ds_tensor", None)
        if shard is not None:
            yield shard, "parameters", name
            yield parameter, "gathered parameters", name
        else:
            yield parameter, "parameters", name
        if parameter.grad is not None:
            yield parameter.grad, "gradients", name
    for name, buffer in module.named_buffers():
        yield buffer, "parameters", name
    # DeepSpeed's optimizers wrap each other, down to torch's.
    layer = optimizer
    while layer is not None:
        for category, attributes in _OWNED.items():
            for attribute in attributes.split():
                for tensor in _tensors(getattr(layer, attribute, None)):
                    yield tensor, category, ""
        for stepped in (layer, getattr(layer, "backup_optimizer", None)):
            for state in stepped.state.values() if isinstance(stepped, torch.optim.Optimizer) else ():
                for tensor in _tensors(list(state.values())):
                    yield tensor, "optimizer states", ""
        if isinstance(layer, torch.optim.Optimizer):
            for group in layer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        yield parameter.grad, "gradients", ""
        layer = getattr(layer, "optimizer", None)


def _tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        if value.grad is not None:
            yield value.grad
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
    # IPGBucket of runtime/zero/stage_1_and_2.py, a dataclass.
    elif depth and "bucket" in type(value).__name__.lower():
        yield from _tensors(value.buffer, depth - 1)
