"""The quick mode gives the tensors that torch's own FakeTensorMode gives, the second time as the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ds_advise.probes.simulated_gpu.fast_fake_tensor import FastFakeTensorMode
from torch._subclasses.fake_tensor import FakeTensorMode


def in_place() -> list[Any]:
    matrix = torch.empty(4, 6)
    return [matrix.add_(1), matrix.t().mul_(2), matrix]


def views() -> list[Any]:
    flat = torch.empty(24, dtype=torch.bfloat16)
    part = flat.narrow(0, 6, 12)
    return [
        flat,
        part,
        part.view(3, 4),
        part.view(3, 4).t(),
        flat.narrow(0, 7, 12),
        part.as_strided((2,), (1,), 3),
        flat.view(2, 12)[:, 3:],
        part.detach(),
    ]


def many_outputs() -> list[Any]:
    matrix = torch.empty(8, 10, requires_grad=True)
    return [*matrix.split(3), *matrix.max(1), *torch.nn.functional.layer_norm(matrix, (10,)).unbind(1)]


def two_types() -> list[Any]:
    whole = torch.empty(3, dtype=torch.int32)
    return [whole + 1, whole + 1.0, whole * True, whole.to(torch.float16), torch.cat([whole, whole])]


def reshaped_tensors() -> list[Any]:
    tensor = torch.empty(2, 3)
    before = tensor + 1
    tensor.unsqueeze_(0)
    other = torch.empty(1)
    other.data = torch.empty(5, 5)
    return [before, tensor, tensor + 1, other * 2, tensor.transpose(1, 2).contiguous(), tensor.expand(4, 2, 3)]


def backward_pass() -> list[Any]:
    layer = torch.nn.Linear(5, 7)
    batch = torch.empty(2, 3, 5)
    output = torch.nn.functional.linear(batch, layer.weight)  # by way of _unsafe_view
    torch.nn.functional.cross_entropy((output + layer.bias).flatten(0, 1), torch.zeros(6, dtype=torch.long)).backward()
    return [output, layer.weight.grad, layer.bias.grad]


def described(mode: FakeTensorMode, run: Callable[[], list[Any]]) -> list[Any]:
    """What can be seen of the tensors, and which of them share a storage."""
    with mode:
        tensors = run()
        storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        return [
            (
                tensor.shape,
                tensor.stride(),
                tensor.storage_offset(),
                tensor.dtype,
                tensor.device,
                tensor.requires_grad,
                tensor.untyped_storage().nbytes(),
                storages.index(storage),
                type(tensor),
                sorted(vars(tensor)),
            )
            for tensor, storage in zip(tensors, storages, strict=True)
        ]


@pytest.mark.parametrize("run", [in_place, views, many_outputs, two_types, reshaped_tensors, backward_pass])
def test_tensors_are_those_of_torchs_own_mode(run: Callable[[], list[Any]]) -> None:
    """Shapes, strides, offsets, dtypes, devices, gradients and shared storages, from torch and then from memory."""
    quick = FastFakeTensorMode()
    with torch.device("cpu"):
        expected = described(FakeTensorMode(allow_non_fake_inputs=True), run)
        assert [described(quick, run) for _ in range(3)] == [expected] * 3


def test_a_known_operation_is_answered_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second addition of tensors alike does not reach torch's dispatch."""
    quick = FastFakeTensorMode()
    with quick:
        left, right = torch.empty(3, 4), torch.empty(3, 4)
        assert (left + right).shape == (3, 4)
        monkeypatch.setattr(FakeTensorMode, "_dispatch_impl", None)
        monkeypatch.setattr(FakeTensorMode, "_cached_dispatch_impl", None)
        assert (right + left).shape == (3, 4)
