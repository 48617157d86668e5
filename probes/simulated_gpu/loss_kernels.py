"""Losses with Triton kernels, as on a GPU, whose kernels compute nothing: they write into tensors that the library
allocated.

DeepSpeed's and TRL's own code runs around their kernels. Liger cannot be imported without Triton, so its loss is
written down here with what it allocates.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

import torch

from ...estimators.workload import Workload
from ..recording.schedule import ScheduleRecorder


class _Kernel:
    """A Triton kernel: the recorder notes its call."""

    def __init__(self, name: str, recorder: ScheduleRecorder) -> None:
        self._name, self._recorder = name, recorder

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        def run(*arguments: Any, **_: Any) -> None:
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            self._recorder.note_memory_kernel(self._name, tensors)

        return run


def install(workload: Workload, recorder: ScheduleRecorder) -> None:
    """Replace the kernels of the workload's loss, and the question whether the device has Triton."""
    if workload.loss == "chunked-softmax":
        softmax: Any = importlib.import_module("deepspeed.runtime.chunked_cross_entropy")
        softmax._resolve_backend = lambda _backend, _logits: "triton"
        for name in ("_log_sum_exp_forward_kernel", "_cross_entropy_backward_kernel"):
            setattr(softmax, name, _Kernel(name, recorder))
    elif workload.loss == "fused":
        liger: Any = ModuleType("liger_kernel.transformers")
        liger._apply_liger_kernel_to_instance = _apply_liger
        _FusedLoss.kernel = _Kernel("liger_cross_entropy_kernel", recorder)
        sys.modules |= {"liger_kernel": ModuleType("liger_kernel"), liger.__name__: liger}


def _apply_liger(model: Any, **_: Any) -> None:
    """The loss of `use_liger_kernel`. Its kernels of layers are left out: they need no more memory than torch's."""
    model.forward = MethodType(_fused_forward, model)


def _fused_forward(self: Any, labels: Any = None, shift_labels: Any = None, **inputs: Any) -> Any:
    """liger-kernel 0.8.5 transformers/model/llama.py `lce_forward`."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    states = self.base_model(**inputs).last_hidden_state
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    fused: Any = _FusedLoss.apply
    loss = fused(states.view(-1, states.shape[-1]), self.lm_head.weight, shift_labels.view(-1))
    return CausalLMOutputWithPast(loss=loss)


class _FusedLoss(torch.autograd.Function):
    """liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py: both gradients are made in the forward pass, and multiplied
    in place by the incoming one in the backward pass."""

    kernel: Any = None

    @staticmethod
    def forward(context: Any, states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        tokens, width = states.shape
        parts = -(-weight.shape[0] // width)
        chunk = min(tokens, 1 << (-(-tokens // parts) - 1).bit_length())
        of_states = torch.zeros_like(states)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        logits = torch.empty((chunk, weight.shape[0]), dtype=states.dtype, device=states.device)
        for start in range(0, tokens, chunk):
            own = states[start : start + chunk]
            part = logits[: own.shape[0]]
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


def patch_trl(recorder: ScheduleRecorder) -> None:
    """Make TRL take its path on a GPU, where its losses are Triton kernels.

    Source: trl 1.16 kernels/chunked_logprob.py, kernels/logprob_entropy.py, trainer/utils.py.
    """

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
    utils: Any = importlib.import_module("trl.trainer.utils")
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
