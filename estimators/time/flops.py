"""Floating-point operations of a training step, product by product.

Symbols: B micro batch, S sequence, T = B S tokens, A heads, d width of a query/key head, dv of a value head.

 1. A linear layer with weight (out, in) computes, forward, for every token
    a. out dot products of length in                                                       2 in out
    b. its bias is one addition in thousands and not counted                               0
 2. Backward, each linear layer computes
    a. the gradient of its input, T x out times out x in                                   2 in out
    b. the gradient of its weight, unless the weight is frozen (LoRA)                      2 in out
 3. LoRA adds to a layer of rank r, forward                                                2 r (in + out)
    and twice that backward. Where peft has no linear layer to wrap (fused experts, a router), it
    computes W + B A, for all tokens together
    a. forward                                                                             2 r in out
       and for the E experts, each with its own r, once more to check the result           2 r in out
    b. backward, the gradients of A and B                                                  4 r in out
    and the products with W + B A need the gradient of a weight, rule 2b.
 4. Attention computes for every pair of a query and a visible key, in every head, forward
    a. the score: a dot product of length d                                                2 d
    b. the value, scaled and added                                                         2 dv
    c. softmax, masking and rotation are not matrix products: counted as bytes elsewhere   0
    A causal query at position q sees q + 1 keys, at most the window. Summed over q: S (S + 1) / 2, or
    w S - w (w - 1) / 2 with a window w. If a mask is added to the scores, all S^2 (eager; sdpa with a mask).
    Documents of D tokens packed into a sample attend only to themselves: S / D times the pairs of D queries.
    If P ranks share a sample, each computes all pairs for A / P of the heads.
    The gated delta rule over chunks of C tokens computes, for every token and value head, 2 C d for keys with keys and
    for queries with keys, C (d + dv) for the two triangular systems, 2 C dv for the values and 6 d dv for the state.
 5. Backward, attention computes four products of that size for two forward; a flash kernel, which keeps no scores,
    computes five: 2.5 x.
 6. With checkpointing every layer, but not the head, runs forward once more, up to the last tensor that its backward
    pass needs: the last product of a layer is not repeated if nothing after it saves a tensor. torch >= 2.1 does so
    when checkpointing is not reentrant (`set_checkpoint_early_stop`), the default of transformers 5.
 7. Tiled compute (`Workload.mlp`) and a loss that repeats the head (`objectives.LOSSES`) run forward once more in their
    backward pass, and keep only their input: checkpointing then repeats all of a tiled feed-forward.
 8. A mixture of experts counts the k experts that each token passes, and the shared ones.

The common estimate of 6 P per token is rules 1 and 2 with P for the sum of all in x out. It counts the embedding
lookup, which is not a product, and omits attention, which is exact here.

Not covered: convolutions (the patches of ViT, the front of Whisper), which are below a hundredth of those models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from math import prod
from typing import NamedTuple

from ..estimate import TimeEstimate
from ..hardware import Cluster, Gpu
from ..memory.activations.kernels import kernel_and_mask
from ..memory.activations.loss import head_chunks
from ..models.lora import Adapters, adapters, trains_head
from ..models.model_shape import Attention, Block, ModelShape, Tensor, build_attention
from ..models.program import ZERO, Program
from ..models.rank_part import rank_share
from ..models.vision_parts import has_backward
from ..objectives import LOSSES
from ..plan import Plan
from ..workload import AttentionKernel, MatmulPrecision, Workload

FLASH_BACKWARD, EAGER_BACKWARD = 2.5, 2.0
"""Backward attention products for one forward (rule 5)."""

_NORM_AT_THE_END = re.compile(r"post_(feedforward|mlp)")
_ENCODER_KEYS = re.compile(r"(EncDecAttention|encoder_attn|crossattention)\W(\w+\.)?(k|v|k_proj|v_proj|key|value)\.")


class Product(NamedTuple):
    """`copies` matrix products of (rows x inner) by (inner x columns) in the forward pass of one layer."""

    rows: int
    inner: int
    columns: int
    copies: int = 1
    backward: int = 2
    """Products of that size in the backward pass: 2 with the gradient of the weight, 1 if the weight is frozen, 0
    without a backward pass."""
    repeats: int = 0
    """Products of the forward pass that the backward pass repeats (rule 7)."""
    recomputed: bool = True
    """Whether checkpointing repeats the product (rule 6)."""
    name: str = ""
    """The module whose weight it has, such as `gate_proj`."""

    @property
    def forward_flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns * self.copies

    @property
    def backward_flops(self) -> int:
        return self.forward_flops * (self.backward + self.repeats)


class StepFlops(NamedTuple):
    """FLOPs of one micro batch on one GPU."""

    forward: int
    backward: int
    recompute: int


def micro_batch_flops(model: ModelShape, workload: Workload, plan: Plan) -> StepFlops:
    """Return the FLOPs that a GPU executes for one micro batch (rules 1 to 8)."""
    blocks_forward = blocks_backward = blocks_recomputed = 0
    for block in model.blocks:
        products = block_products(model, block, workload, plan.micro_batch_size)
        attention = sum(work.flops for work in block_attention(model, block, workload, plan.micro_batch_size))
        forward = sum(product.forward_flops for product in products) + attention
        blocks_forward += block.count * forward
        if not has_backward(model, block, workload, checkpointing=plan.gradient_checkpointing):
            continue
        blocks_recomputed += block.count * (
            forward - sum(product.forward_flops for product in products if not product.recomputed)
        )
        blocks_backward += block.count * (
            sum(product.backward_flops for product in products)
            + round(attention * attention_backward(workload.attention))
        )
    head = head_product(model, workload, plan.micro_batch_size)
    return StepFlops(
        forward=blocks_forward + (head.forward_flops if head else 0),
        backward=blocks_backward + (head.backward_flops if head else 0),
        recompute=blocks_recomputed if plan.gradient_checkpointing else 0,
    )


def block_products(model: ModelShape, block: Block, workload: Workload, micro_batch: int) -> tuple[Product, ...]:
    """Return the matrix products with weights in one layer."""
    if model.module and block.program is not None:
        return tuple(_recorded_products(block, block.program, workload, micro_batch))
    stream = model.stream_len(block, workload.seq_len)
    tokens, encoder_tokens = micro_batch * stream, micro_batch * model.encoder_len(workload.seq_len)
    lora = adapters(model, workload)
    products: list[Product] = []
    for tensor in block.tensors:
        name = _module(tensor.name)
        backward = 2 if workload.method == "full" and not tensor.frozen else 1
        if tensor.role == "expert" and len(tensor.shape) == 3:
            feed_forward = block.feed_forward
            experts, one, other = tensor.shape
            # Tokens spread over the experts; with few tokens some experts stay idle.
            busy = min(experts, tokens * feed_forward.experts_per_token)
            products.append(
                Product(
                    rows=-(-tokens * feed_forward.experts_per_token // busy),
                    inner=one,
                    columns=other,
                    copies=busy,
                    backward=2 if lora.folds(tensor) else backward,
                    name=name,
                )
            )
            if layers := lora.adapter_layers(tensor) // experts:
                for matrix in lora.matrices(tensor)[:2]:
                    columns, inner = layers * matrix.out_features, matrix.in_features
                    products.append(
                        products[-1]._replace(inner=inner, columns=columns, backward=2, name=f"LoRA of {name}")
                    )
        elif len(tensor.shape) == 2 and (tensor.linear or tensor.role in ("router", "expert")):
            # Keys and values of cross attention are projected from the encoder's output.
            rows = encoder_tokens if _ENCODER_KEYS.search(tensor.name) else tokens
            repeats = workload.mlp == "tiled" and tensor.role == "feed_forward"  # rule 7
            products.append(
                Product(
                    rows=rows,
                    inner=tensor.in_features,
                    columns=tensor.out_features,
                    backward=2 if lora.folds(tensor) else backward,
                    repeats=int(repeats),
                    name=name,
                )
            )
            if tensor.linear and (rank := lora.adapter_rank(tensor)):
                wide_in, wide_out = tensor.in_features, tensor.out_features
                products += (
                    Product(rows=rows, inner=wide_in, columns=rank, name=f"LoRA of {name}"),
                    Product(rows=rows, inner=rank, columns=wide_out, name=f"LoRA of {name}"),
                )
                if lora.dora:  # B(A(I)), outside autograd; W x again if its input is dropped
                    products += (
                        Product(rows=wide_in, inner=wide_in, columns=rank, backward=0, name=f"DoRA of {name}"),
                        Product(rows=wide_in, inner=rank, columns=wide_out, backward=0, name=f"DoRA of {name}"),
                    )
                if lora.dora and workload.lora_dropout:
                    products.append(
                        Product(rows=rows, inner=wide_in, columns=wide_out, backward=1, name=f"DoRA of {name}")
                    )
        if lora.folds(tensor):
            products += _folds(tensor, lora)
    tiled = workload.mlp == "tiled" and not block.feed_forward.experts
    if products and not tiled and not _saves_after_last_product(block):
        # The last product's result is needed by nothing: checkpointing stops before it (rule 6).
        products[-1] = products[-1]._replace(recomputed=False)
    return tuple(products)


def _module(weight: str) -> str:
    """Return the name of the module that has a weight: `gate_proj` of `mlp.gate_proj.weight`."""
    return weight.removesuffix(".weight").rpartition(".")[2]


def _recorded_products(block: Block, program: Program, workload: Workload, micro_batch: int) -> Iterator[Product]:
    """Yield the products of a module's program, each as one matrix product of the same FLOPs and result size. For a
    convolution, `inner` is the window and the columns are the output channels."""
    shapes = {tensor.name: tensor.shape for tensor in block.tensors}
    trained = {tensor.name for tensor in block.tensors if not tensor.frozen}
    derived = program.slots_requiring_grad(trained)
    is_checkpointed = False
    for instruction in program.instructions:
        if instruction.kind in ("checkpoint", "checkpointed"):
            is_checkpointed = instruction.kind == "checkpoint"
        flops = instruction.flops.at(workload.seq_len).at(micro_batch)
        if not flops:
            continue
        result = program.slots[instruction.outputs[0]]
        elements = result.elements.at(workload.seq_len).at(micro_batch)
        weight = next((shapes[name] for name in instruction.reads_weights if len(shapes.get(name, ())) > 1), ())
        columns = min(weight[0] if weight else result.width, elements)
        inner = max(1, flops // (2 * elements))
        needs, trains = [number in derived for number in instruction.inputs], trained & {*instruction.reads_weights}
        backward = float(bool(trains) + needs[0])
        if instruction.kind != "linear":
            mask = sum(need << place for place, need in enumerate([*needs, bool(trains)]))
            derivative = instruction.derivative(mask)
            backward = derivative.flops.at(workload.seq_len).at(micro_batch) / flops if derivative else 0.0
        yield Product(
            rows=elements // columns,
            inner=inner,
            columns=columns,
            backward=round(backward),
            recomputed=is_checkpointed,
            name=_module(next(iter(instruction.reads_weights), instruction.kind)),
        )


def _saves_after_last_product(block: Block) -> bool:
    """Return whether anything after the layer's last product saves a tensor: dropout, a norm, expert weights."""
    if block.program is not None:
        tail = takewhile(lambda each: each.kind != "linear", reversed(block.program.instructions))
        derivatives = [derivative for each in tail for _, derivative in each.derivatives]
        return any(each.saves_inputs or each.saves_outputs or each.saves_new.at(1) != ZERO for each in derivatives)
    return bool(
        block.hidden_dropout
        or block.feed_forward.experts_per_token < block.feed_forward.experts
        or any(_NORM_AT_THE_END.search(tensor.name) for tensor in block.tensors)
    )


def _folds(tensor: Tensor, lora: Adapters) -> tuple[Product, ...]:
    """Return the products of W + B A for a router, or for every expert with the repeated check (rule 3a)."""
    *experts, wide_out, wide_in = tensor.shape
    copies = prod(experts)
    fold = Product(
        rows=wide_out,
        inner=lora.adapter_rank(tensor) // copies,
        columns=wide_in,
        copies=copies,
        name=f"LoRA of {_module(tensor.name)}",
    )
    return (fold, fold._replace(backward=0)) if experts else (fold,)


def head_product(model: ModelShape, workload: Workload, micro_batch: int) -> Product | None:
    """Return the output layer over the vocabulary; None without one. A classification head is too small to count."""
    unread = workload.loss == "value-head"
    if model.vocab_size == 0 or (model.num_labels and not unread):
        return None
    # If ranks split the head, each computes its part of the columns.
    columns = next((tensor.shape[0] for tensor in model.outside if tensor.name == "lm_head.weight"), model.vocab_size)
    return Product(
        rows=micro_batch * workload.scored_len,
        inner=model.hidden_size,
        columns=columns,
        backward=0 if unread else 2 if trains_head(model, workload) else 1,
        repeats=0 if unread else LOSSES[workload.loss].recomputes_head,
        name="head",
    )


def head_launches(model: ModelShape, workload: Workload, micro_batch: int) -> tuple[tuple[Product, int], ...]:
    """Return the products that compute `head_product`, with their numbers. A loss that never has all logits computes
    them in chunks. Each reads the weight of its columns, and adds to their gradient, however few its tokens."""
    head = head_product(model, workload, micro_batch)
    if head is None:
        return ()
    rows, columns = head_chunks(model, workload, micro_batch)
    return tuple(
        (head._replace(rows=own_rows, columns=own_columns), row_chunks * column_chunks)
        for own_rows, row_chunks in _divided(head.rows, rows)
        for own_columns, column_chunks in _divided(head.columns, columns)
    )


def _divided(size: int, part: int) -> tuple[tuple[int, int], ...]:
    """Return the sizes of the parts of `size` with their numbers: whole parts, and the rest."""
    whole, rest = divmod(size, part)
    return tuple((each, number) for each, number in ((part, whole), (rest, 1)) if each and number)


class AttentionWork(NamedTuple):
    attention: Attention
    flops: int
    masked: bool
    """Whether torch's memory-efficient kernel adds a mask to the scores."""


def block_attention(model: ModelShape, block: Block, workload: Workload, micro_batch: int) -> tuple[AttentionWork, ...]:
    """Return each attention module of one layer (rule 4)."""
    if model.module and block.program is not None:
        return tuple(_recorded_attention(block.program, workload, micro_batch))
    kernel, masked = kernel_and_mask(model, block, workload, block.attention, None)
    masked = masked and kernel == "efficient"
    encoder, stream = model.encoder_len(workload.seq_len), model.stream_len(block, workload.seq_len)
    attention, total_len = block.attention.rank_share(workload.sequence_parallel_size), attention_len(workload, stream)
    document_len = attended_len(workload, stream)
    dense = kernel == "eager" or masked
    flops = attention_flops(attention, micro_batch, document_len, document_len, dense=dense) * total_len // document_len
    # A layer without attention (Mamba's mixer, an MLP alone) has no heads.
    modules = [AttentionWork(attention, flops, masked)] if attention.heads else []
    if block.cross_attention is not None:
        flops = attention_flops(block.cross_attention, micro_batch, stream, encoder)
        modules.append(AttentionWork(block.cross_attention, flops, masked=False))
    return tuple(modules)


def _recorded_attention(program: Program, workload: Workload, micro_batch: int) -> Iterator[AttentionWork]:
    for instruction in program.instructions:
        if instruction.kind == "attention":
            attention = build_attention(instruction.details)
            queries = program.slots[instruction.inputs[0]].elements.at(workload.seq_len).at(micro_batch)
            batch = queries // (attention.heads * attention.head_dim * attention.tokens)
            dense = workload.attention == "eager"
            flops = attention_flops(attention, batch, attention.tokens, attention.keys, dense=dense)
            yield AttentionWork(attention, flops, masked=False)


def attended_len(workload: Workload, stream: int) -> int:
    """Return the number of tokens that attend to each other: a document, or the whole stream."""
    whole = attention_len(workload, stream)
    return min(workload.document_len or whole, whole)


def attention_len(workload: Workload, stream: int) -> int:
    """Return the tokens of a sample in one attention: with sequence parallelism those of all its ranks."""
    return stream * workload.sequence_parallel_size


def attention_flops(attention: Attention, batch: int, queries: int, keys: int, *, dense: bool = False) -> int:
    """Return 2 B A (d + dv) FLOPs for every computed pair of query and key; those of the delta rule by rule 4. dense:
    whether masked pairs are computed too."""
    if chunk := attention.chunk:
        key, value = attention.head_dim, attention.v_head_dim
        per_token = 4 * chunk * key + chunk * (key + value) + 2 * chunk * value + 6 * key * value
        return batch * attention.heads * queries * per_token
    pairs = queries * keys if dense else visible_pairs(attention, queries, keys)
    return 2 * batch * attention.heads * (attention.head_dim + attention.v_head_dim) * pairs


def visible_pairs(attention: Attention, queries: int, keys: int) -> int:
    """Return the unmasked pairs of query and key of one sequence."""
    if attention.cross:
        return queries * keys
    window = min(attention.window or keys, keys)
    if attention.causal:
        # The first w - 1 queries see fewer keys than the window.
        return window * queries - window * (window - 1) // 2
    return queries * window


def attention_backward(kernel: AttentionKernel) -> float:
    return EAGER_BACKWARD if kernel == "eager" else FLASH_BACKWARD


_BACKWARD_ATTENTION = 2
"""Backward products of attention for one of the forward pass, without those repeated by a flash kernel."""


def model_flops_utilization(
    model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan, time: TimeEstimate
) -> float | None:
    """Return MFU = n (forward + backward FLOPs of a micro batch on one GPU) / (step_s x peak); None if no peak is
    published.

    The peak is the dense one of the training's products. Recomputation (checkpointing, tiles, a flash kernel's
    scores) does not count (PaLM, arXiv:2204.02311 appendix B), nor do gradients of frozen weights.
    """
    peak = peak_flops_per_s(cluster.gpu, workload.matmul_precision)
    if not peak:
        return None
    rank, part = rank_share(model, plan), workload.rank_share(plan.sequence_parallel_size)
    # MFU counts the model's own FLOPs, not those that a memory saving repeats.
    part = replace(part, mlp="whole", loss="standard" if LOSSES[part.loss].recomputes_head else part.loss)
    flops, micro = micro_batch_flops(rank, part, plan), plan.micro_batch_size
    attention = sum(
        block.count * work.flops for block in rank.blocks for work in block_attention(rank, block, part, micro)
    )
    repeated = (attention_backward(part.attention) - _BACKWARD_ATTENTION) * attention
    needed = plan.gradient_accumulation_steps * (flops.forward + flops.backward - repeated)
    return needed / (time.step_s * peak)


def peak_flops_per_s(gpu: Gpu, precision: MatmulPrecision) -> float | None:
    of_tf32 = gpu.tf32_flops_per_s or gpu.fp32_flops_per_s
    peaks = {"bf16": gpu.bf16_flops_per_s, "fp16": gpu.fp16_flops_per_s, "fp32": gpu.fp32_flops_per_s, "tf32": of_tf32}
    return peaks[precision]
