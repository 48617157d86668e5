"""Feed-forward modules: activation functions, dense and gated layers, mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from ...models.model_shape import FeedForward
from ...models.program import LayerVariant
from .ops import Ops
from .passes import backward_bytes, backward_pass, forward_bytes, forward_pass
from .saved_tensors import AutogradGraph, Value

INDEX_BYTES = 8
"""Bytes per index."""


def activate(ops: Ops, function: str, value: Value) -> Value:
    """Return an activation function of transformers' `ACT2FN`, fused or composed as in its code.

    relu saves its result. silu, gelu and gelu_pytorch_tanh are one kernel that saves the input. gelu_new is 0.5 x (1 +
    tanh(c (x + 0.0447 x^3))) in eight operations that keep x, the tanh and both factors of the last product.
    quick_gelu is x * sigmoid(1.702 x).
    """
    if function == "relu":
        return ops.saves_output("activated", value)
    if function == "gelu_new":
        # torch.pow is on autocast's fp32 list, so x^3 is computed from an fp32 copy.
        half, base = ops.scale(value), ops.cast(value, ops.workload.activation_itemsize)
        inner = ops.scale(ops.add(value, ops.scale(ops.power("x^3", base))))
        gate = ops.scale(ops.saves_output("tanh", inner))
        return ops.multiply(half, gate, "activated", itemsize=gate.itemsize)
    if function == "quick_gelu":
        return ops.multiply(value, ops.saves_output("sigmoid", ops.scale(value)), "activated")
    return ops.saves_input("activated", value)


def dense(ops: Ops, shape: FeedForward, names: Sequence[str], value: Value) -> Value:
    """Return down(act(gate(x)) * up(x)) or down(act(up(x))). names: the linear layers in order of use; gate and up may
    be fused."""
    *inputs, down = names
    if shape.gated:
        if len(inputs) == 2:
            gate, up = (ops.linear(name, value) for name in inputs)
        else:
            fused = ops.linear(inputs[0], value)
            gate, up = ops.graph.split(fused, (fused.width // 2, fused.width // 2))
        inner = _gated(ops, shape, gate, up)
    else:
        inner = activate(ops, shape.activation, ops.linear(inputs[0], value))
    output = ops.linear(down, inner)
    ops.graph.keep_alive(value)
    return output


def tiled_dense(ops: Ops, shape: FeedForward, names: Sequence[str], value: Value) -> Value:
    """Return `dense` computed in tiles of tokens: the forward pass saves only x, the backward pass recomputes each
    tile.

    Forward: results of all tiles and their concatenation. Backward: the gradient of x, one tile's forward and backward
    pass, the previous tile's result, and the weights' gradients, which accumulate until the last tile. Source:
    deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py TiledMLP.
    """
    # DeepSpeed's example cuts a sequence into ceil(S / H) tiles, so that a tile is about square.
    tiles, graph = -(-value.rows // value.width), ops.graph
    tile = ops._replace(graph=AutogradGraph(graph.part))
    part = tile.graph.tensor(-(-value.rows // tiles), value.width, value.itemsize, "tile", outer=True)
    result = dense(tile, shape, names, part)
    saved = sum(storage.size for storage in tile.graph.saved())
    backward = max(moment.per_sample for moment in backward_pass(tile.graph, result).moments) + saved - result.size
    recomputed = max(moment.per_sample for moment in forward_pass(tile.graph).moments)
    # TiledMLP hides gradients from ZeRO until the last tile (`ds_grad_is_ready`), so they stay whole on the GPU.
    weights = sum(ops.weights[name].numel for name in names) if ops.reduces_gradients and tiles > 1 else 0
    forward_moved, backward_moved = forward_bytes(tile.graph).per_sample, backward_bytes(tile.graph, result).per_sample
    results = graph.apply(
        "results of tiles",
        (value,),
        saves=(value,),
        trains=ops.trains,
        forward_workspace=max(moment.per_sample for moment in forward_pass(tile.graph, saves=False).moments),
        workspace=max(recomputed, backward + result.size) + (result.size if tiles > 1 else 0),
        fixed_workspace=value.itemsize * weights,
        product=True,
        moves=(tiles * forward_moved, tiles * (forward_moved + backward_moved)),
    )
    return graph.apply("feed-forward output", (results,), reuses_gradient=True)


def _gated(ops: Ops, shape: FeedForward, gate: Value, up: Value) -> Value:
    """Return act(gate) * up. Liger's kernel keeps both and overwrites them with their gradients (liger-kernel 0.8.5
    ops/swiglu.py)."""
    if ops.workload.kernels == "liger":
        return ops.graph.apply("gated", (gate, up), saves=(gate, up), overwrites=True)
    return ops.multiply(activate(ops, shape.activation, gate), up, "gated")


def experts(ops: Ops, shape: FeedForward, router: str, value: Value, *, variant: LayerVariant) -> Value:
    """Return routed experts as grouped matrix products over k copies of every token, sorted by expert.

    Saved: the router's fp32 probabilities and top-k, the sort's indices, the sorted copies of x, the fused gate and up,
    their product, the experts' outputs and routing weights. Source: transformers 5.23 `integrations/moe.py`
    (grouped_mm_experts_forward, the default in training).
    """
    copies, graph = shape.experts_per_token, ops.graph
    logits = ops.linear(router, ops.cast(value, 4) if variant.router_fp32 else value)
    if variant.softmax_of_top_k:
        scores = ops.saves_output("routing weights", _top_k(ops, logits, copies))
    else:
        scores = _top_k(ops, ops.saves_output("router probabilities", ops.cast(logits, 4)), copies)
    if not variant.routing_fp32:
        scores = ops.cast(scores, ops.itemsize)
    rows = value.rows * copies
    order, token, inverse = (
        graph.tensor(rows, 1, INDEX_BYTES, label, needs_grad=False)
        for label in ("order by expert", "token of each copy", "inverse order")
    )
    # Sorting by expert makes each expert's tokens one block, which a grouped matrix product needs.
    weights = graph.gather("sorted routing weights", _as_rows(scores), order, rows=rows)
    fused = _grouped(
        ops,
        "gate_up_proj",
        graph.gather("sorted tokens", value, token, rows=rows),
        shape.hidden * (2 if shape.gated else 1),
    )
    inner = _clamped_gate(ops, fused, shape.hidden) if variant.gpt_oss_experts else _gate(ops, shape, fused)
    output = _grouped(ops, "down_proj", inner, value.width)
    weighted = ops.multiply(output, weights, "weighted output", itemsize=weights.itemsize)
    restored = graph.gather("restored order", weighted, inverse, rows=rows)
    return ops.cast(graph.apply("expert output", (restored,), rows=value.rows), ops.itemsize)


GROUP_ALIGNMENT = 8
"""Multiple to which an expert's tokens are padded (deepspeed 0.19.8 moe/ep_kernels.py TOKEN_GROUP_ALIGN_SIZE_M)."""


def spread_experts(ops: Ops, shape: FeedForward, router: str, value: Value) -> Value:
    """Return routed experts under AutoEP: k copies of every token are sent to their experts' ranks and back.

    With a balanced router a rank receives as many copies as it sends. Saved: the router's fp32 probabilities and top-k,
    indices of sort and padding, the padded received copies, gate, up and their product, the returned copies and their
    weights. Gate and up are separate products, joined by one kernel that saves both. Source: deepspeed 0.19.8
    module_inject/auto_ep_layer.py `AutoEPMoELayer._forward`, `combine_from_routed`, moe/ep_experts.py,
    moe/ep_kernels.py, moe/ep_router.py.
    """
    copies, graph = shape.experts_per_token, ops.graph
    rows = value.rows * copies
    padded = rows + shape.experts // shape.autoep_size * GROUP_ALIGNMENT  # padding: once per batch, here per sample

    def projected(label: str, operand: Value, width: int) -> Value:
        return graph.apply(label, (operand,), width=width, saves=(operand,), trains=True, product=True)

    def index(count: int, label: str, itemsize: int = INDEX_BYTES) -> Value:
        return graph.tensor(count, 1, itemsize, label, needs_grad=False)

    scores = ops.saves_output("router probabilities", ops.cast(ops.linear(router, value), 4))
    scores = _top_k(ops, scores, copies)
    # Normalizing divides by the sum over the chosen experts; scaling by the route scale is a product with a constant.
    scores = ops.scale(graph.apply("normalized weights", (scores,), saves=(scores,)))
    order, places, inverse = (
        index(rows, "order by expert"),
        index(padded, "places of copies", 4),
        index(rows + padded, "inverse order"),
    )
    sent = graph.gather("sorted tokens", value, index(rows, "token of each copy"), rows=rows)
    received = ops.new("received tokens", (sent,))
    grouped = graph.apply("tokens by expert", (received,), rows=padded, saves=(places, inverse))
    gate, up = (projected(label, grouped, shape.hidden) for label in ("gate", "up"))
    inner = graph.apply("gated", (gate, up), saves=(gate, up))
    output = projected("down", inner, value.width)
    output = graph.apply("tokens in order", (output,), rows=rows, saves=(places, inverse))
    returned = ops.new("returned tokens", (output,))
    placed = graph.apply("restored order", (returned,), saves=(order,))
    graph.keep_alive(grouped, returned)
    weighted = ops.multiply(placed, _as_rows(scores), "weighted output", itemsize=4)
    return ops.cast(graph.apply("expert output", (weighted,), rows=value.rows), ops.itemsize)


def _as_rows(value: Value) -> Value:
    """Return the same storage as one column."""
    return Value(value.rows * value.width, 1, value.itemsize, value.storage, value.needs_grad)


def _top_k(ops: Ops, scores: Value, copies: int) -> Value:
    indices = ops.graph.tensor(scores.rows, copies, INDEX_BYTES, "expert indices", needs_grad=False)
    return ops.graph.apply("routing weights", (scores,), width=copies, saves=(indices,))


def _grouped(ops: Ops, label: str, value: Value, width: int) -> Value:
    """Return `torch._grouped_mm`. The input is saved if the expert weights train."""
    name = next((name for name, tensor in ops.weights.items() if tensor.role == "expert" and name.endswith(label)), "")
    folded = ops.folded(name) if name else None
    if folded is not None:
        return ops.graph.apply(label, (value, folded), width=width, saves=(value, folded), product=True)
    saves = (value,) if ops.trains else ()
    base = ops.graph.apply(label, (value,), width=width, saves=saves, trains=ops.trains, product=True)
    return ops.adapted(ops.weights[name], base, value, label) if name else base


def _gate(ops: Ops, shape: FeedForward, fused: Value) -> Value:
    if not shape.gated:
        return activate(ops, shape.activation, fused)
    gate, up = ops.graph.split(fused, (shape.hidden, shape.hidden))
    return ops.multiply(activate(ops, shape.activation, gate), up, "gated")


def _clamped_gate(ops: Ops, fused: Value, hidden: int) -> Value:
    # gpt-oss adds a bias to gate and up, which is a new tensor; its split by every other column is two views.
    bias = ops.graph.apply("expert biases", (fused,))
    gate, up = (ops.graph.apply("gate_up_proj", (fused,), width=hidden, view=True) for _ in range(2))
    # The derivative of clamp masks the gradient with one byte per element.
    gate, up = (
        ops.graph.apply(f"clamped {label}", (part,), saves=(part,), workspace=part.rows * part.width)
        for label, part in (("gate", gate), ("up", up))
    )
    glu = ops.multiply(gate, ops.saves_output("sigmoid", ops.scale(gate)), "glu")
    gated = ops.multiply(ops.scale(up), glu, "gated")
    ops.graph.keep_alive(bias, up)
    return gated
