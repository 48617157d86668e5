"""The tensors of single modules, named and shaped as torch and transformers do."""

from __future__ import annotations

from ..model_shape import Attention, FeedForward, Role, Tensor

Tensors = tuple[Tensor, ...]


def linear(
    name: str, wide_in: int, wide_out: int, role: Role, *, bias: bool = False, transposed: bool = False
) -> Tensors:
    """`nn.Linear`: weight (out, in), bias (out,). GPT-2's `Conv1D` is the same with the weight transposed."""
    shape = (wide_in, wide_out) if transposed else (wide_out, wide_in)
    weight = Tensor(name=f"{name}.weight", shape=shape, role=role, linear=True, transposed=transposed)
    return (weight, Tensor(name=f"{name}.bias", shape=(wide_out,), role=role)) if bias else (weight,)


def norm(name: str, width: int, *, bias: bool = False) -> Tensors:
    """A norm with a learned scale, and with a learned shift as most LayerNorms have."""
    weight = Tensor(name=f"{name}.weight", shape=(width,), role="norm")
    return (weight, Tensor(name=f"{name}.bias", shape=(width,), role="norm")) if bias else (weight,)


def embedding(name: str, rows: int, width: int, role: Role = "embedding") -> Tensors:
    return (Tensor(name=f"{name}.weight", shape=(rows, width), role=role),)


def parameter(name: str, *shape: int, role: Role) -> Tensors:
    """A tensor that a module holds itself, such as fused expert weights."""
    return (Tensor(name=name, shape=shape, role=role),)


def attention_linears(
    dims: Attention,
    hidden: int,
    names: tuple[str, ...],
    *,
    bias: bool = False,
    output_bias: bool | None = None,
    transposed: bool = False,
) -> Tensors:
    """The projections of one attention: query, key, value (one name for all three: fused), and the output.

    The output has a bias where the others have one, unless `output_bias` says otherwise.
    """
    *inputs, output = names
    widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.v_head_dim]
    if len(inputs) == 1:
        widths = [sum(widths)]
    tensors: Tensors = ()
    for name, width in zip(inputs, widths, strict=True):
        tensors += linear(name, hidden, width, "attention", bias=bias, transposed=transposed)
    last = bias if output_bias is None else output_bias
    return tensors + linear(output, dims.heads * dims.v_head_dim, hidden, "attention", bias=last, transposed=transposed)


def feed_forward_linears(
    dims: FeedForward, hidden: int, names: tuple[str, ...], *, bias: bool = False, transposed: bool = False
) -> Tensors:
    """The projections of one dense feed-forward: gate and up (one name: fused) or a plain one, and the output."""
    *inputs, output = names
    width = dims.hidden * 2 if dims.gated and len(inputs) == 1 else dims.hidden
    tensors: Tensors = ()
    for name in inputs:
        tensors += linear(name, hidden, width, "feed_forward", bias=bias, transposed=transposed)
    return tensors + linear(output, dims.hidden, hidden, "feed_forward", bias=bias, transposed=transposed)
