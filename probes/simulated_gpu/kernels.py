"""Replacements of compiled kernels (DeepSpeed's and those of losses), which compute nothing.

DeepSpeed loads an extension through an op builder of its accelerator. The classes around the kernels (`FusedAdam`,
`DeepSpeedCPUAdam`, the NVMe swappers) stay DeepSpeed's own, so their states and dtypes are those of the installed
version. The real Adam kernels update in place and allocate nothing either (csrc/adam/multi_tensor_adam.cu,
csrc/adam/cpu_adam_impl.cpp). Kernels that allocate have their own replacements: the quantizer and the NVMe handle.

Losses have Triton kernels, which write into tensors that the library allocated. DeepSpeed's and TRL's own code runs
around them. Liger cannot be imported without Triton, so its loss is reimplemented here with its allocations.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial, partialmethod, wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal

import torch

from ..recording.ledger import Ledger
from ..recording.schedule import ScheduleRecorder


class _NoOpExtension:
    """Any function of a compiled extension: it allocates nothing, and the recorder records the call."""

    def __init__(self, recorder: ScheduleRecorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for special methods, which no extension has.
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: self._recorder.note_kernel(name, arguments)


class _AsyncIo(_NoOpExtension):
    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder) -> None:
        super().__init__(recorder)
        self._ledger = ledger

    def aio_handle(self, *arguments: Any, **options: Any) -> CountingHandle:
        return CountingHandle(self._ledger, self._recorder, *arguments, **options)


def op_builder(class_name: str, ledger: Ledger, recorder: ScheduleRecorder) -> type | None:
    """The class that DeepSpeed instantiates, whose `load()` returns the extension; None for CPU collectives."""
    # Without a builder comm/torch.py uses torch's collectives, as on a GPU.
    if class_name in ("ShareMemCommBuilder", "CCLCommBuilder"):
        return None

    class Builder:
        NAME = name = class_name

        def load(self, verbose: bool = True) -> _NoOpExtension | QuantizerKernels:
            if class_name == "QuantizerBuilder":
                return QuantizerKernels(recorder)
            return _AsyncIo(ledger, recorder) if class_name == "AsyncIOBuilder" else _NoOpExtension(recorder)

        def is_compatible(self, verbose: bool = False) -> bool:
            return True

        def builder_available(self) -> bool:
            return True

    Builder.__name__ = class_name
    return Builder


def install(ledger: Ledger, recorder: ScheduleRecorder) -> None:
    """Replace the builders that DeepSpeed's modules bound when they were imported, before the accelerator was set."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("deepspeed.") and ".op_builder." not in module_name:
            for name in [name for name in vars(module) if name.endswith("Builder")]:
                setattr(module, name, op_builder(name, ledger, recorder))


class CountingHandle:
    """Replaces `aio_handle` (deepspeed/ops/op_builder/async_io.py): counts bytes, and every transfer succeeds
    immediately.

    `wait()` returns the number of transfers since the last call. Its page-locked tensors come from `posix_memalign` in
    the real handle, so torch's rounding of pinned blocks does not apply to them.
    """

    def __init__(self, ledger: Ledger, recorder: ScheduleRecorder, *arguments: Any, **options: Any) -> None:
        self._ledger = ledger
        self._recorder = recorder
        self._pending = 0
        self._queue = recorder.new_stream()

    def _transfer(self, kind: Literal["read", "write"], buffer: torch.Tensor, path: str) -> None:
        self._ledger.nvme_transfer(kind, path, buffer.nbytes)
        self._recorder.transfer(kind, buffer.nbytes, self._queue)

    def _submit(self, kind: Literal["read", "write"], buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer(kind, buffer, path)
        self._pending += 1
        return 0

    def _complete(self, kind: Literal["read", "write"], buffer: torch.Tensor, path: str, *_: Any) -> int:
        self._transfer(kind, buffer, path)
        self._recorder.synchronize_stream(self._queue)
        return 1

    async_pread, async_pwrite = partialmethod(_submit, "read"), partialmethod(_submit, "write")
    sync_pread, sync_pwrite = partialmethod(_complete, "read"), partialmethod(_complete, "write")

    def wait(self) -> int:
        self._recorder.synchronize_stream(self._queue)
        done = self._pending
        self._pending = 0
        return done

    def new_cpu_locked_tensor(self, numel: int, example: torch.Tensor) -> torch.Tensor:
        return self._ledger.new_locked(int(numel), example.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._ledger.is_pinned(tensor)


class QuantizerKernels:
    """The extension of ZeRO++'s collectives; each function reads its input and writes its results once.

    Shapes and types of the results are those of deepspeed 0.19.8 csrc/quantization/pt_binding.cpp (`quantize_kernel`,
    `dequantize`, `ds_swizzle_quant`, `quantized_reduction`): an int8 tensor, with two numbers per byte in 4 bits, and
    one fp32 scale per group of a symmetric quantization. They run on CUDA only and are not tested against it.
    """

    Symmetric = 0
    """The only kind in use: a scale without offset."""

    def __init__(self, recorder: ScheduleRecorder) -> None:
        self._recorder = recorder

    def quantize(self, values: Any, groups: int, bits: int, kind: int) -> list[Any]:
        *leading, last = values.shape
        numbers = values.new_empty((*leading, last * bits // 8), dtype=torch.int8)
        return self._noted("quantize", [numbers, self._scales(values, groups)], values)

    def dequantize(self, numbers: Any, scales: Any, groups: int, bits: int, kind: int) -> Any:
        *leading, last = numbers.shape
        values = numbers.new_empty((*leading, last * 8 // bits), dtype=torch.half)
        return self._noted("dequantize", [values], numbers)[0]

    def swizzle_quant(
        self, values: Any, groups: int, bits: int, kind: int, pipeline_size: int, nodes: int, per_node: int
    ) -> list[Any]:
        numbers = values.new_empty((values.numel() * bits // 8,), dtype=torch.int8)
        return self._noted("swizzle_quant", [numbers, self._scales(values, groups)], values)

    def quantized_reduction(
        self, numbers: Any, scales: Any, in_groups: int, out_groups: int, bits: int, kind: int, per_node: int
    ) -> list[Any]:
        *leading, last = numbers.shape
        reduced = numbers.new_empty((*leading, last // per_node))
        return self._noted("quantized_reduction", [reduced, self._scales(numbers, out_groups)], numbers)

    @staticmethod
    def _scales(example: Any, groups: int) -> Any:
        return example.new_empty((groups, 1), dtype=torch.float32)

    def _noted(self, name: str, results: list[Any], read: Any) -> list[Any]:
        self._recorder.note_memory_kernel(name, [read, *results])
        return results


class _Kernel:
    """A Triton kernel: the recorder records its call."""

    def __init__(self, name: str, recorder: ScheduleRecorder) -> None:
        self._name = name
        self._recorder = recorder

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        def run(*arguments: Any, **_: Any) -> None:
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            self._recorder.note_memory_kernel(self._name, tensors)

        return run


def patch_chunked_softmax(recorder: ScheduleRecorder, softmax: Any) -> None:
    """Replace the kernels of DeepSpeed's chunked loss, and the check whether the device has Triton. softmax: its
    module."""
    softmax._resolve_backend = lambda _backend, _logits: "triton"
    for name in ("_log_sum_exp_forward_kernel", "_cross_entropy_backward_kernel"):
        setattr(softmax, name, _Kernel(name, recorder))


def patch_liger(recorder: ScheduleRecorder, liger: Any) -> None:
    """Replace what `use_liger_kernel` calls. liger: the module `liger_kernel.transformers`."""
    # An attribute of the class: autograd functions have static methods only.
    _FusedLoss.kernel = _Kernel("liger_cross_entropy_kernel", recorder)
    liger._apply_liger_kernel_to_instance = _apply_liger


def liger_stand_in() -> ModuleType:
    """`liger_kernel.transformers` where Liger cannot be imported, as without Triton."""
    package, liger = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
    for module in (package, liger):
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    return liger


def _apply_liger(model: Any, *, fused_linear_cross_entropy: bool = True, **_: Any) -> None:
    """Install the loss of `use_liger_kernel`. Its kernels of layers are not installed: they need no more memory than
    torch's."""
    if fused_linear_cross_entropy:
        # The Trainer looks into the signature for the columns that the model takes.
        model.forward = wraps(model.forward)(partial(_fused_forward, model))


def _fused_forward(self: Any, labels: Any = None, shift_labels: Any = None, **inputs: Any) -> Any:
    """Forward pass of liger-kernel 0.8.5 transformers/model/llama.py `lce_forward`."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    states = self.base_model(**inputs).last_hidden_state
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    fused: Any = _FusedLoss.apply
    loss = fused(states.view(-1, states.shape[-1]), self.lm_head.weight, shift_labels.view(-1))
    return CausalLMOutputWithPast(loss=loss)


class _FusedLoss(torch.autograd.Function):
    """Loss of liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py: the forward pass computes both gradients, and the
    backward pass multiplies them in place by the incoming one."""

    kernel: Any = None

    @staticmethod
    def forward(context: Any, states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        tokens, width = states.shape
        parts = -(-weight.shape[0] // width)
        # Liger's chunk has about as many logits as hidden states, rounded up to a power of two of rows.
        chunk = min(tokens, 1 << (-(-tokens // parts) - 1).bit_length())
        of_states = torch.zeros_like(states)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        logits = torch.empty((chunk, weight.shape[0]), dtype=states.dtype, device=states.device)
        for start in range(0, tokens, chunk):
            own = states[start : start + chunk]
            part = logits[: own.shape[0]]
            # The logits of all chunks share one buffer; their gradient overwrites them in place.
            torch.mm(own, weight.t(), out=part)
            _FusedLoss.kernel[()](part, part, targets[start : start + chunk])
            torch.mm(part, weight, out=of_states[start : start + chunk])
            if of_weight is not None:
                torch.addmm(of_weight, part.t(), own, out=of_weight)
        context.save_for_backward(of_states, of_weight)
        return states.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> Any:
        for each in context.saved_tensors:
            if each is not None:
                _FusedLoss.kernel[()](each, each)
        return (*context.saved_tensors, None)


def patch_trl(recorder: ScheduleRecorder, utils: Any) -> None:
    """Make TRL use its GPU path, in which its losses are Triton kernels, where it has one.

    utils: `trl.trainer.utils`. Source: trl 1.16 kernels/chunked_logprob.py, kernels/logprob_entropy.py.
    """
    if not hasattr(utils, "_use_triton") or not hasattr(utils, "_supports_trl_loss_kernel"):
        return

    def add_product(sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        # torch.addmm(..., out_dtype=torch.float32) of a GPU, for which fake tensors have no rule.
        torch.mm(left, right, out=sums.view(left.dtype)[:, : sums.shape[1]])

    def compiled(function: Any) -> _Kernel:
        return _Kernel(str(function), recorder)

    language: Any = ModuleType("triton.language")
    language.constexpr = int
    triton: Any = ModuleType("triton")
    triton.jit, triton.cdiv, triton.language = compiled, lambda size, part: -(-size // part), language
    chunked: Any = importlib.import_module("trl.kernels.chunked_logprob")
    # The stand-ins must be found while the module is imported, and only then.
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "triton"}
    stand_ins = {"triton": triton, "triton.language": language}
    sys.modules.update(stand_ins)
    whole: Any = importlib.import_module("trl.kernels.logprob_entropy")
    for name in stand_ins:
        del sys.modules[name]
    sys.modules.update(kept)
    for changed in (chunked, whole):
        for name in ("_forward_kernel", "_backward_kernel"):
            setattr(changed, name, _Kernel(name, recorder))
        changed.triton = triton
    chunked._addmm_fp32 = add_product
    chunked._use_triton = utils._use_triton = lambda _device: True
    utils.is_triton_available = utils._supports_trl_loss_kernel = lambda *_: True
    utils._fused_logprob_entropy = whole.selective_log_softmax_and_entropy
