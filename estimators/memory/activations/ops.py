"""Operations of transformer layers, recorded in an autograd graph as torch and peft run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...models.lora import Adapters, in_int8, quantized
from ...models.model_shape import Tensor
from ...models.program import NormVariant
from ...workload import Workload
from .saved_tensors import AutogradGraph, Value


class Ops(NamedTuple):
    graph: AutogradGraph
    workload: Workload
    weights: Mapping[str, Tensor]
    """The layer's matrices and fused experts, by module name."""
    adapters: Adapters
    biased: frozenset[str] = frozenset()
    frozen: bool = False
    """Whether all of the tensors are frozen (`--freeze`)."""
    reduces_gradients: bool = False
    """Whether ZeRO takes each gradient as it is made; with tiles, after the last tile's is added."""
    keeps_frozen_inputs: bool = False
    """Whether ZeRO-3's linear layer is in use; it always saves its input (deepspeed 0.19 `runtime/zero/linear.py`)."""

    @property
    def itemsize(self) -> int:
        return self.workload.weight_bytes

    @property
    def trains(self) -> bool:
        """Whether the model's own weights train, not only adapters."""
        return self.workload.method == "full" and not self.frozen

    @property
    def fused(self) -> bool:
        """Whether norms and rotary embedding are one kernel each."""
        return self.workload.kernels != "torch"

    def new(self, label: str, inputs: Sequence[Value], *, rows: int | None = None, width: int | None = None) -> Value:
        """Return a copy or a linear map that saves nothing (scaling, contiguous, repeat)."""
        return self.graph.apply(label, inputs, rows=rows, width=width)

    def scale(self, value: Value, label: str = "") -> Value:
        """Return the product with a constant or a frozen weight: a new tensor; no input is saved."""
        return self.graph.apply(label or value.storage.label, (value,))

    def add(self, left: Value, right: Value, label: str = "sum") -> Value:
        return self.graph.apply(label, (left, right), itemsize=max(left.itemsize, right.itemsize), reuses_gradient=True)

    def multiply(self, left: Value, right: Value, label: str, *, itemsize: int | None = None) -> Value:
        # The derivative of a product reads the other factor, and only for a factor that needs a gradient.
        saves = [other for other, one in ((right, left), (left, right)) if one.needs_grad]
        # The gradient of a one-column factor is a full product before it is summed.
        narrow = right.width < left.width and right.needs_grad
        workspace = left.rows * left.width * (itemsize or left.itemsize) if narrow else 0
        return self.graph.apply(label, (left, right), saves=saves, workspace=workspace, itemsize=itemsize)

    def cast(self, value: Value, itemsize: int) -> Value:
        """Return `.to(dtype)`: the same tensor if the type is the same."""
        if value.itemsize == itemsize:
            return value
        label = value.storage.label.removesuffix(" in fp32")
        return self.graph.apply(f"{label} in fp32" if itemsize == 4 else label, (value,), itemsize=itemsize)

    def saves_input(self, label: str, value: Value) -> Value:
        """Return silu, gelu and the like, whose derivative reads the input."""
        return self.graph.apply(label, (value,), saves=(value,))

    def power(self, label: str, value: Value) -> Value:
        """Return x^n. Its derivative takes two more tensors."""
        return self.graph.apply(label, (value,), saves=(value,), workspace=2 * value.size)

    def saves_output(self, label: str, value: Value) -> Value:
        """Return relu, tanh, sigmoid, softmax or rsqrt, whose derivative reads the result."""
        return self.graph.apply(label, (value,), saves_output=True)

    def product(self, label: str, left: Value, right: Value, *, width: int) -> Value:
        return self.graph.apply(label, (left, right), width=width, itemsize=left.itemsize, saves=(left, right))

    def dropout(self, value: Value, applied: object = True) -> Value:
        """Return torch's fused dropout, which keeps a mask of one byte per element."""
        if not applied:
            return value
        mask = self.graph.tensor(value.rows, value.width, 1, "dropout mask")
        return self.graph.apply(value.storage.label, (value,), saves=(mask,))

    def folded(self, name: str) -> Value | None:
        """Return W + scaling B A, which peft substitutes for fused experts and routers; None if they are not adapted.

        The sum is as large as W, one per layer, and kept for the backward pass because its product saves it. Its
        gradient is as large. Source: peft 0.21 `tuners/lora/layer.py` (ParamWrapper, `_LoraFactorsProxy`).
        """
        tensor = self.weights[name]
        if not self.adapters.folds(tensor):
            return None
        width = tensor.shape[-1]
        frozen = self.graph.tensor(
            tensor.numel // width, width, self.itemsize, name, needs_grad=False, fixed=True, outer=True
        )
        return self.graph.apply(f"adapted {name.rpartition('.')[2]}", (frozen,), trains=True)

    def linear(self, name: str, value: Value, label: str = "", width: int = 0) -> Value:
        """Return `nn.Linear` or a router, with peft's adapter if there is one: W x + scaling * B(A(x)).

        The input is saved if the weight trains. With LoRA, lora_A trains and saves the input, lora_B saves lora_A's
        output; the scaled product and the sum are separate tensors. Dropout keeps a mask and a copy of the input per
        adapted layer. Source: peft 0.21 `tuners/lora/layer.py` (Linear.forward). Adapters have the model's type under
        DeepSpeed. peft's own fp32 adapters read an fp32 copy of the input, which autocast casts back. QLoRA dequantizes
        the weight for each product, in the backward pass again (bitsandbytes `MatMul4Bit`). int8 dequantizes it in the
        backward pass only (`MatMul8bitLt`) and keeps the input as an attribute. Its forward pass has the input in fp16
        and int8 and the product in int32; outlier columns are not counted.

        width: that of the result, if it is a part of the weight's.
        """
        weight = self.weights[name]
        width = width or weight.numel // value.width
        label = label or name.rpartition(".")[2]
        if self.workload.autocasts:  # each layer casts its own input
            value = self.cast(value, self.itemsize)
        if self.trains and not weight.frozen:
            summed = value.rows * width * value.itemsize if name in self.biased else 0  # the bias's gradient
            return self.graph.apply(
                label, (value,), width=width, saves=(value,), trains=True, product=True, moves=(0, summed)
            )
        folded = self.folded(name)
        if folded is not None:
            # The product with W + B A saves the sum as well, because the sum is an activation that needs a gradient.
            operands = value, self.cast(folded, value.itemsize)
            return self.graph.apply(label, operands, width=width, saves=operands, product=True)
        dequantized = weight.numel * self.itemsize if quantized(weight, self.workload) else 0
        int8 = in_int8(weight, self.workload)
        cast = 0 if self.workload.precision == "fp16" else 2
        # The input is cast to fp16 (2 + 2), compared (|x| 2 + 2, mask 2 + 1, read 2), quantized 2 + 1; the result goes
        # from int32 to fp16 (4 + 4 + 2) and is cast (bitsandbytes 0.49 backends/cuda/ops.py int8_vectorwise_quant).
        int8_moves = value.rows * ((12 + 2 * cast) * value.width + (10 + 2 * cast) * width) if int8 else 0
        base = self.graph.apply(
            label,
            (value,),
            width=width,
            saves=(value,) if self.keeps_frozen_inputs or int8 else (),
            hidden=int8,
            fixed_workspace=dequantized,
            product=True,
            moves=(int8_moves, 0),
            forward_workspace=value.rows * ((1 + cast) * value.width + 4 * width) if int8 else 0,
        )
        return self.adapted(weight, base, value, label)

    def adapted(self, weight: Tensor, base: Value, value: Value, label: str) -> Value:
        """Return the product with the frozen weight plus that of its adapter, if it has one with modules of its own."""
        rank, width = self.adapters.adapter_rank(weight), base.width
        if not rank:
            return base
        if self.adapters.dora:
            return self.decomposed(weight, base, value, label)
        cast_input = self.cast(value, 4) if self.workload.software.fp32_adapters else value
        lora_input = self.dropout(cast_input, self.workload.lora_dropout)
        if self.workload.software.autocast:
            lora_input = self.cast(lora_input, self.itemsize)
        low = self.graph.apply(
            f"lora_A of {label}", (lora_input,), width=rank, saves=(lora_input,), trains=True, product=True
        )
        full = self.graph.apply(f"lora_B of {label}", (low,), width=width, saves=(low,), trains=True, product=True)
        update = self.scale(full)
        # Not in place: peft writes `result = result + lora_B(lora_A(x)) * scaling`, so both exist for a moment.
        output = self.add(base, self.cast(update, base.itemsize), label)
        self.graph.keep_alive(value, cast_input)
        return output

    def decomposed(self, weight: Tensor, base: Value, value: Value, label: str) -> Value:
        """Return the product with a frozen weight and a DoRA adapter: W x + (s - 1) W x + s scaling B(A(x)), where s is
        the trained magnitude of each output over the norm of its row of W + scaling B A.

        Every forward pass, recomputations too, makes B A as B(A(I)), scales it, adds W and takes the norms, all of it
        outside autograd; I and B A stay to the layer's end. The derivative of s reads both products. With dropout
        W x is computed again, from the input that was dropped. Source: peft 0.21 tuners/lora/dora.py
        DoraLinearLayer.forward, tuners/lora/variants.py DoraLinearVariant.forward.
        """
        item = 4 if self.workload.software.fp32_adapters and not self.workload.software.autocast else self.itemsize
        low = self.adapters.adapter_rank(weight)
        wide_in, wide_out = weight.in_features, weight.out_features
        graph, cast_input = self.graph, self.cast(value, 4) if self.workload.software.fp32_adapters else value
        lora_input = self.dropout(cast_input, self.workload.lora_dropout)
        whole = graph.tensor(wide_out, wide_in, self.itemsize, "weight", needs_grad=False, fixed=True, outer=True)
        identity = graph.apply("identity", (whole,), rows=wide_in, width=wide_in, itemsize=item)
        product = graph.apply("B A", (identity,), rows=wide_in, width=wide_out, product=True)
        dense = self.cast(whole, item)
        if quantized(weight, self.workload):
            dense = graph.apply("dequantized weight", (whole,), itemsize=item)
        summed = graph.apply("W + B A", (dense, self.scale(product)))
        graph.apply("weight norms", (summed,), width=1)
        narrow = graph.apply(
            f"lora_A of {label}", (lora_input,), width=low, saves=(lora_input,), trains=True, product=True
        )
        full = graph.apply(f"lora_B of {label}", (narrow,), width=wide_out, saves=(narrow,), trains=True, product=True)
        plain = base
        if self.workload.lora_dropout:
            plain = graph.apply(
                label, (lora_input,), width=wide_out, saves=(lora_input,) * self.keeps_frozen_inputs, product=True
            )
        elif weight.name.removesuffix(".weight") in self.biased:
            plain = self.new(label, (base,))
        left, right = (
            graph.apply(f"{each.storage.label} by magnitude", (each,), saves=(each,), trains=True, workspace=each.size)
            for each in (plain, full)
        )
        added = self.add(left, self.scale(right), label)
        graph.keep_alive(identity, product, dense, value, cast_input)
        return self.add(base, self.cast(added, base.itemsize), label)


def norm(ops: Ops, variant: NormVariant, value: Value, label: str = "normed", *, heads: int = 1) -> Value:
    """Return one norm over the last dimension; a row has `heads` of them.

      layer:        torch's own LayerNorm: the input, a mean and a reciprocal deviation per row.
      rms:          Llama: x in fp32 squared and scaled, cast back, times the weight.
      rms_fp32:     OLMo 2, gpt-oss: the product with the weight is in fp32, then cast.
      rms_plus_one: Gemma: as rms_fp32 with (1 + weight), which is always a new tensor of H.
      layer_bare:   OLMo: torch's LayerNorm of an fp32 copy, without a weight.

    Fused kernels of RMS norms keep the input as it is and a reciprocal RMS per row. Except for Gemma's, they write the
    gradient of the input over that of the output (liger-kernel 0.8.5 ops/rms_norm.py, unsloth
    kernels/rms_layernorm.py).
    """
    if ops.fused and variant in ("rms", "rms_plus_one", "rms_fp32"):
        scale = ops.graph.tensor(value.rows, heads, 4, "reciprocal RMS")
        in_place = variant != "rms_plus_one"
        return ops.graph.apply(label, (value,), saves=(value, scale), reuses_gradient=in_place, trains=ops.trains)
    if variant == "layer":
        return _native(ops, ops.cast(value, 4) if ops.workload.autocasts else value, label, heads)
    if variant == "layer_bare":
        return ops.cast(_native(ops, ops.cast(value, 4), label, heads), value.itemsize)
    wide = ops.cast(value, 4)
    squares = ops.power("squares", wide)
    mean = ops.graph.apply("reciprocal RMS squared", (squares,), width=heads, itemsize=4)
    scale = ops.saves_output("reciprocal RMS", mean)
    normed = ops.multiply(wide, scale, "normed in fp32")
    if variant == "rms":
        return _weighted(ops, ops.cast(normed, value.itemsize), label)
    return ops.cast(_weighted(ops, normed, label), value.itemsize)


def _weighted(ops: Ops, value: Value, label: str) -> Value:
    """Return weight * x. x is saved only for the weight's gradient, which is a full product before it is summed."""
    if not ops.trains:
        return ops.scale(value, label)
    return ops.graph.apply(label, (value,), saves=(value,), trains=True, workspace=value.size)


def _native(ops: Ops, value: Value, label: str, heads: int) -> Value:
    statistics = ops.graph.tensor(value.rows, 2 * heads, 4, "mean and deviation")
    return ops.graph.apply(label, (value,), saves=(value, statistics), trains=ops.trains)
