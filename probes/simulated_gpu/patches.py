"""Patches of torch, transformers and DeepSpeed for the simulated GPU: slow imports, functions that need values,
AutoEP, and hooks whose host calls are recorded."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder


def before_deepspeed() -> None:
    """Disable compilation and the lookup of the processor. To be called before DeepSpeed is imported.

    Importing Muon's functions compiles them, which makes torch import its whole compiler (deepspeed 0.19.8
    runtime/zero/muon/original_muon.py). The optimizers on the host look up the processor's vendor in a subprocess, for
    a warning (ops/adam/cpu_adam.py, ops/lion/cpu_lion.py).
    """
    torch: Any = importlib.import_module("torch")
    # Before the import, because decorators call it while the modules are loaded.
    torch.compile = _not_compiled
    # `from cpuinfo import get_cpu_info` in the constructors of the optimizers.
    cpuinfo: Any = ModuleType("cpuinfo")
    cpuinfo.get_cpu_info = dict
    sys.modules["cpuinfo"] = cpuinfo


def after_deepspeed() -> None:
    """Disable profiler ranges and torch's search for dispatch rules (there are none), and cache the signatures of
    autograd functions. To be called after DeepSpeed is imported."""
    nvtx: Any = importlib.import_module("deepspeed.utils.nvtx")
    nvtx.enable_nvtx = False
    registry: Any = importlib.import_module("torch._library.simple_registry")
    registry.find_torch_dispatch_rule = lambda _operation, _mode: None
    function: Any = importlib.import_module("torch.autograd.function")
    # torch inspects the signature of `forward` at every call of `apply`.
    function.inspect = SimpleNamespace(signature=cache(inspect.signature))


def count_written_buckets() -> None:
    """Count of a reduction bucket what is written: at most all trained elements, since it has each of them once between
    two reductions. On a CPU a page of `torch.empty` takes memory only after it is written. A bucket of that size is
    reduced at the same elements as a larger one. To be called after DeepSpeed is imported."""
    for name, owner_name in (
        ("stage_1_and_2", "DeepSpeedZeroOptimizer"),
        ("stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ):
        owner: Any = getattr(importlib.import_module(f"deepspeed.runtime.zero.{name}"), owner_name)
        owner.__init__ = _with_written_bucket(owner.__init__)


def _with_written_bucket(init: Any) -> Any:
    signature = inspect.signature(init)

    @wraps(init)
    def made(*arguments: Any, **options: Any) -> None:
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        trained = [
            getattr(each, "ds_numel", each.numel())
            for group in given.arguments["init_optimizer"].param_groups
            for each in group["params"]
            if each.requires_grad
        ]
        size = int(given.arguments["reduce_bucket_size"])
        given.arguments["reduce_bucket_size"] = min(size, sum(trained) or size)
        init(*given.args, **given.kwargs)

    return made


def _not_compiled(model: Any = None, **_: Any) -> Any:
    """`torch.compile` as a function or a decorator with options; it compiles nothing."""
    return (lambda function: function) if model is None else model


def patch_torch(ledger: Ledger) -> None:
    """Replace torch functions that cannot run on fake tensors: random states, pinning and addresses."""
    state = torch.zeros(16, dtype=torch.uint8)
    torch_module: Any = torch
    # `torch.get_rng_state` is a copy of the name in `torch.random`.
    for module in (torch_module, torch_module.random):
        module.get_rng_state = lambda: state
        module.set_rng_state = lambda _state: None

    def pin_memory(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if ledger.is_pinned(tensor):
            return tensor
        # A new block: `pin_memory` copies pageable memory.
        with ledger.births_pinned():
            return torch.empty_like(tensor)

    # torch's optimizers choose their implementation by the class of the tensors.
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        importlib.import_module(name)._foreach_supported_types.append(FakeTensor)
    torch_module.Tensor.pin_memory = pin_memory
    torch_module.Tensor.is_pinned = lambda tensor, *_: ledger.is_pinned(tensor)
    setattr(FakeTensor, "data_ptr", _address)  # noqa: B010  # a type checker objects to exchanging torch's method
    # Savers compare addresses to find tied weights.
    torch_module.UntypedStorage.data_ptr = lambda storage: storage._cdata


def _address(tensor: torch.Tensor) -> int:
    """An address that is unique to the storage, with the alignment of the tensor's offset in it."""
    # Shifted by 1 TiB, so that the addresses of two storages never overlap.
    return int((tensor.untyped_storage()._cdata << 40) + tensor.storage_offset() * tensor.element_size())


def patch_transformers() -> None:
    """Make transformers use its training path and treat batches as unpacked.

    transformers takes fake tensors for tracing and then builds masks that training does not, and it reads the values of
    position ids to detect packed samples.

    Under ZeRO-3 the weights of a model are initialized or loaded module by module, and each module is gathered for it.
    Here only the largest module is gathered: it determines the peak.
    """
    import_utils: Any = importlib.import_module("transformers.utils.import_utils")
    if hasattr(import_utils, "is_fake_tensor"):
        # The attribute of the module suffices: `is_tracing` in the same module calls it.
        import_utils.is_fake_tensor = lambda _tensor: False
    integration: Any = importlib.import_module("transformers.integrations.deepspeed")
    if hasattr(integration, "initialize_weights_zero3"):
        integration.initialize_weights_zero3 = gather_largest_module
    try:
        masking_utils: Any = importlib.import_module("transformers.masking_utils")
    except ImportError:  # transformers before 4.53
        return
    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def gather_largest_module(model: torch.nn.Module) -> None:
    """Gather and release the largest module's own parameters under ZeRO-3."""
    import deepspeed

    def size(module: torch.nn.Module) -> int:
        return sum(getattr(parameter, "ds_numel", 0) for parameter in module.parameters(recurse=False))

    # ds_numel: under ZeRO-3 the parameter itself is empty.
    largest = max(model.modules(), key=size)
    with deepspeed.zero.GatheredParameters(list(largest.parameters(recurse=False)), modifier_rank=0):
        pass


def patch_autoep() -> None:
    """Replace AutoEP's functions that need values or Triton. No effect if DeepSpeed has no AutoEP.

    The router is balanced: every expert gets equally many tokens, and a rank sends and receives as many tokens as it
    has, one copy for each of a token's experts. Triton kernels are replaced by the tensors that they allocate. Source:
    deepspeed 0.19.8 module_inject/auto_ep_layer.py, moe/ep_kernels.py, ops/triton_ops/swiglu_triton.py.
    """
    try:
        detection, layer, kernels, gate = (
            _deepspeed(name)
            for name in ("module_inject.auto_ep", "module_inject.auto_ep_layer", "moe.ep_kernels", _GATE)
        )
    except ImportError:
        return
    # It compares the activation's result on sample values.
    detection._gate_activation_matches = lambda _experts: None  # the result for an unknown activation
    layer.compute_split_plan = _balanced_split_plan
    kernels.fill_indices_wrapper = _indices
    kernels.permute_rows_supported = lambda _rows: True
    kernels.gather_rows = lambda rows, index: rows.new_empty((index.numel(), rows.shape[1]))
    gate.swiglu = _Gate.apply


def patch_vocabulary_loss(module: Any) -> None:
    """Replace the exchange of the ranks' parts of a vocabulary that AutoTP splits, which DeepSpeed then compares, by
    equal parts (deepspeed 0.19.8 sequence/cross_entropy.py)."""

    def equal_parts(local: int, _start: int, _end: int, group: Any, _device: Any) -> int:
        return local * int(module.dist.get_world_size(group))

    module._validate_vocab_shard_bounds = equal_parts


_GATE = "ops.triton_ops.swiglu_triton"


def _deepspeed(name: str) -> Any:
    return importlib.import_module(f"deepspeed.{name}")


def _balanced_split_plan(
    selected_experts: torch.Tensor,
    num_experts: int,
    ep_size: int,
    num_local_experts: int,
    ep_group: Any,
    **options: Any,
) -> Any:
    """`compute_split_plan` with equal numbers of tokens to and from every rank."""
    communication = _deepspeed("comm")
    layer = _deepspeed("module_inject.auto_ep_layer")
    counts = options["num_tokens_per_expert"]
    tokens = selected_experts.numel()
    # The counts are exchanged like in DeepSpeed, so that the collective is recorded.
    received = torch.empty_like(counts)
    communication.all_to_all_single(received, counts, group=ep_group)
    torch.stack([of_experts.view(ep_size, -1).sum(dim=1) for of_experts in (counts, received)]).cpu()
    splits = [tokens // ep_size] * ep_size
    return layer.SplitPlan(splits, splits, received.view(ep_size, num_local_experts))


def _indices(counts: torch.Tensor, _starts: Any, _offsets: Any, _experts: int, _ranks: int, max_len: int) -> Any:
    return torch.full((max_len,), -1, dtype=torch.int32, device=counts.device)


class _Gate(torch.autograd.Function):
    """`_SwiGLUFn`: saves both inputs, allocates both gradients."""

    @staticmethod
    def forward(context: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = context.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


def _count_one(*_: Any) -> int:
    return 1


def _count_unavailable(parameters: Any, *_: Any) -> int:
    """Number of a fetch's parameters that are not available."""
    return sum(parameter.ds_status.name == "NOT_AVAILABLE" for parameter in parameters)


_HOOKS: tuple[tuple[str, str, str, Callable[..., int]], ...] = (
    ("parameter_offload.DeepSpeedZeRoOffload", "pre_sub_module_forward_function", "visit_forward", _count_one),
    ("parameter_offload.DeepSpeedZeRoOffload", "post_sub_module_forward_function", "", _count_one),
    ("parameter_offload.DeepSpeedZeRoOffload", "pre_sub_module_backward_function", "visit_backward", _count_one),
    ("parameter_offload.DeepSpeedZeRoOffload", "post_sub_module_backward_function", "", _count_one),
    (
        "partitioned_param_coordinator.PartitionedParameterCoordinator",
        "__all_gather_params",
        "gather",
        _count_unavailable,
    ),
    ("stage_1_and_2.DeepSpeedZeroOptimizer", "process_gradients", "bucketed_gradient", _count_one),
    ("stage_1_and_2.DeepSpeedZeroOptimizer", "reduce_ipg_grads", "bucket", _count_one),
    (
        "stage3.DeepSpeedZeroOptimizer_Stage3",
        "reduce_ready_partitions_and_remove_grads",
        "partitioned_gradient",
        _count_one,
    ),
    ("stage3.DeepSpeedZeroOptimizer_Stage3", "__reduce_and_partition_ipg_grads", "bucket", _count_one),
)
"""(class below deepspeed.runtime.zero, method, name in `HostCosts` ("": part of another), count per call of the
method); deepspeed 0.18.3 to 0.19.8."""


def record_hooks(recorder: ScheduleRecorder) -> None:
    """Record the host calls of DeepSpeed's hooks (visited modules, gathered weights, reduced gradients). To be called
    before the engine is created."""

    def recorded(method: Any, call: str, times: Callable[..., int]) -> Any:
        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            if call:
                recorder.call(call, times(*arguments))
            with recorder.hook():
                return method(self, *arguments, **options)

        return run

    # On the classes, because every engine makes objects of its own.
    for path, method, call, times in _HOOKS:
        module, _, owner = path.partition(".")
        hooked: Any = getattr(importlib.import_module(f"deepspeed.runtime.zero.{module}"), owner)
        # Python's name of a method that begins with two underscores.
        name = f"_{owner}{method}" if method.startswith("__") else method
        setattr(hooked, name, recorded(getattr(hooked, name), call, times))
