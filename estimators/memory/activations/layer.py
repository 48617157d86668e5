"""The forward pass of one transformer layer, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...models.model_shape import Attention, Block
from ...models.program import LayerVariant
from .feed_forward import dense, experts, spread_experts, tiled_dense
from .kernels import Kernel, attend, delta_rule
from .ops import Ops, norm
from .saved_tensors import Value


@dataclass(slots=True, kw_only=True, eq=False)
class Layer:
    """A layer's dimensions, the variant of its code, and its external inputs."""

    ops: Ops
    variant: LayerVariant
    block: Block
    kernel: Kernel
    mask: Value | None = None
    """Mask added to the scores: the causal one of eager attention, or a sliding window's."""

    def forward(self, value: Value) -> Value:
        value = self._branch("attention", value, self._attention)
        return self._branch("feed-forward", value, self._feed_forward)

    def _branch(self, part: str, value: Value, run: Callable[[Value], Value]) -> Value:
        """Return the sum of the input and one branch, with its norms, in the family's layout."""
        ops, layout = self.ops, self.variant.layout
        ops.graph.part = part
        inner = norm(ops, self.variant.norm, value) if layout in ("pre", "sandwich") else value
        output = run(inner)
        if layout in ("output", "sandwich"):
            output = norm(ops, self.variant.norm, output)
        output = ops.dropout(output, self.block.hidden_dropout)
        # An addition saves nothing, and the gradient of a sum is the same tensor for both branches.
        return ops.add(value, ops.scale(output) if self.variant.residual_scaled else output, "residual")

    def _names(self, role: str) -> list[str]:
        return [name for name, tensor in self.ops.weights.items() if tensor.role == role and tensor.linear]

    def _attention(self, value: Value) -> Value:
        attention = self.block.attention
        if attention.kv_lora_rank:
            return self._latent_attention(attention, value)
        if attention.chunk:
            return self._delta_net(attention, value)
        *inputs, output = self._names("attention")
        query, key, states = self._project(attention, inputs, value)
        gate = None
        if attention.gated:
            query, gate = self.ops.graph.split(query, (query.width // 2, query.width // 2))
            gate = self.ops.scale(gate, "gate")  # gates and queries alternate head by head
        if attention.qk_norm:
            query, key = self._normed_heads("q", query), self._normed_heads("k", key)
        if attention.rotary:
            query, key = self._rotate(query), self._rotate(key)
        if self.ops.workload.sequence_parallel_size > 1:
            attended = self._ulysses_attention(output, attention, (query, key, states))
        else:
            attended = self._attend(output, attention, (query, key, states), gate)
        self.ops.graph.keep_alive(value)
        return attended

    def _ulysses_attention(self, output: str, attention: Attention, states: tuple[Value, Value, Value]) -> Value:
        """Return Ulysses attention: all tokens for a part of the heads, between two all-to-alls. Queries, keys and
        values stay alive as local variables of the layer, the exchanged ones as those of
        `UlyssesSPAttentionHF.forward`."""
        ops, ranks = self.ops, self.ops.workload.sequence_parallel_size
        part = attention.rank_share(ranks)
        rows, kept = states[0].rows, ops.graph.keep_alive
        heads = (part.heads, part.kv_heads, part.kv_heads)
        exchanged = []
        for state, count in zip(states, heads, strict=True):
            width = count * attention.head_dim
            if width * ranks > state.width:
                state = ops.new("repeated heads", (state,), width=width * ranks)
            copy = ops.scale(state)  # an all-to-all takes contiguous tensors
            exchanged.append(ops.new(state.storage.label, (copy,), rows=rows * ranks, width=width))
        gathered = [ops.scale(state) for state in exchanged]
        attended = attend(ops, self.kernel, self.variant, part, (gathered[0], gathered[1], gathered[2]))
        result = ops.new("attention output", (attended,), rows=rows, width=attention.heads * attention.v_head_dim)
        result = ops.scale(result)
        kept(*states, *gathered)
        return ops.linear(output, result)

    def _normed_heads(self, label: str, value: Value) -> Value:
        """Return the norm of queries or keys: over each head, or over all heads if the weight has their width."""
        wide = any(
            tensor.shape == (value.width,) and f"{label}_" in tensor.name and tensor.role == "norm"
            for tensor in self.block.tensors
        )
        heads = 1 if wide else value.width // self.block.attention.head_dim
        return norm(self.ops, self.variant.qk_norm, value, label, heads=heads)

    def _project(self, attention: Attention, names: Sequence[str], value: Value) -> tuple[Value, Value, Value]:
        """Return queries, keys and values: three linear layers, or views of a fused one."""
        ops = self.ops
        if len(names) == 1:
            widths = (
                attention.heads * attention.head_dim,
                attention.kv_heads * attention.head_dim,
                attention.kv_heads * attention.v_head_dim,
            )
            query, key, states = ops.graph.split(ops.linear(names[0], value, "qkv"), widths)
            return query, key, states
        query, key, states = (ops.linear(name, value, label) for name, label in zip(names, "qkv", strict=True))
        return query, key, states

    def _attend(
        self, output: str, attention: Attention, states: tuple[Value, Value, Value], gate: Value | None = None
    ) -> Value:
        ops, kernel, dropout = self.ops, self.kernel, bool(self.block.attention_dropout)
        attended = attend(ops, kernel, self.variant, attention, states, mask=self.mask, dropout=dropout)
        if kernel == "flash" and self.variant.joined:  # its output is head-major
            attended = ops.new("attention output", (attended,))
        if gate is not None:
            attended = ops.multiply(attended, ops.saves_output("sigmoid", gate), "gated output")
        return ops.linear(output, attended)

    def _rotate(self, value: Value) -> Value:
        """Return x cos + rotate_half(x) sin, a new tensor; x is not saved, as the tables need no gradient. A fused
        kernel rotates in place, or a copy if x is a part of a larger tensor (liger-kernel 0.8.5 ops/rope.py)."""
        ops = self.ops
        if ops.fused:
            whole = value.size == value.storage.size
            in_place = (2 * value.size, 2 * value.size)
            label = value.storage.label
            return ops.graph.apply(label, (value,), view=True, moves=in_place) if whole else ops.scale(value)
        wide = ops.cast(value, 4) if self.variant.rotary == "fp32" or ops.workload.autocasts else value
        # Forward: negated and concatenated. Backward: two slices are written into zeros and added.
        half = ops.graph.apply("rotated half", (wide,), workspace=wide.size, moves=(wide.size, 3 * wide.size))
        return ops.cast(ops.add(ops.scale(wide), ops.scale(half), value.storage.label), value.itemsize)

    def _latent_attention(self, attention: Attention, value: Value) -> Value:
        """Return DeepSeek's latent attention in training: keys and values are expanded for every head."""
        ops, heads = self.ops, attention.heads
        names = self._names("attention")
        find = {name.rpartition(".")[2]: name for name in names}
        if "q_a_proj" in find:
            query = ops.linear(find["q_b_proj"], norm(ops, self.variant.norm, ops.linear(find["q_a_proj"], value)))
        else:
            query = ops.linear(find["q_proj"], value)
        latent = ops.linear(find["kv_a_proj_with_mqa"], value)
        latent, _ = ops.graph.split(latent, (attention.kv_lora_rank, attention.rope_head_dim))
        expanded = ops.linear(find["kv_b_proj"], norm(ops, self.variant.norm, latent))
        key_width = heads * (attention.head_dim - attention.rope_head_dim)
        key, states = ops.graph.split(expanded, (key_width, heads * attention.v_head_dim))
        # The rotary part of the key is one for all heads: joining it to each head's plain part copies both.
        query, key = ops.new("q", (query,)), ops.new("k", (key,), width=heads * attention.head_dim)
        return self._attend(find["o_proj"], attention, (query, key, states))

    def _delta_net(self, attention: Attention, value: Value) -> Value:
        """Return Gated DeltaNet: projections, a convolution over the last tokens, the delta rule, a norm gated by z.

        Source: transformers 5.23 qwen3_5/modeling_qwen3_5.py Qwen3_5GatedDeltaNet, without flash-linear-attention.
        """
        ops, graph, heads = self.ops, self.ops.graph, attention.heads
        find = {name.rpartition(".")[2]: name for name in self._names("attention")}
        keys, values = attention.kv_heads * attention.head_dim, heads * attention.v_head_dim
        fused = "in_proj_qkvz" in find
        if fused:  # queries, keys, values and gates are interleaved by head
            projected = ops.linear(find["in_proj_qkvz"], value)
            steps = ops.linear(find["in_proj_ba"], value)
            mixed, gate = graph.split(projected, (2 * keys + values, values))
            beta, decay = graph.split(steps, (heads, heads))
            mixed, gate, beta, decay = ops.scale(mixed), ops.scale(gate), ops.scale(beta), ops.scale(decay)
        else:
            mixed, gate, beta, decay = (
                ops.linear(find[name], value) for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            )
        convolved = graph.apply("convolved", (mixed,), saves=(mixed,), trains=ops.trains)
        query, key, states = graph.split(ops.saves_input("convolved", convolved), (keys, keys, values))
        beta = ops.saves_output("sigmoid", beta)
        decay = ops.saves_input("softplus", ops.scale(ops.cast(decay, 4)))
        decay = graph.apply("decay", (decay,), saves=(decay,), trains=ops.trains)
        output = delta_rule(ops, attention, (query, key, states), beta, decay)
        output = norm(ops, "rms", output, "delta", heads=heads)
        activated = ops.saves_input("activated", ops.cast(gate, 4))
        output = ops.cast(ops.multiply(output, activated, "gated output", itemsize=4), ops.itemsize)
        graph.keep_alive(value)
        return ops.linear(find["out_proj"], output)

    def _feed_forward(self, value: Value) -> Value:
        ops, shape, variant = self.ops, self.block.feed_forward, self.variant
        names = self._names("feed_forward")
        if not shape.experts and ops.workload.mlp == "tiled":
            return tiled_dense(ops, shape, names, value)
        if not shape.experts:
            return dense(ops, shape, names, value)
        matrices = [name for name, tensor in ops.weights.items() if len(tensor.shape) == 2]
        router = next(name for name in matrices if ops.weights[name].role == "router")
        gate = next((name for name in matrices if name.endswith("shared_expert_gate")), None)
        # Qwen's code runs the shared expert before the routed ones, DeepSeek's after them.
        shared = dense(ops, shape, names, value) if gate is not None else None
        if shape.autoep_size > 1:
            output = spread_experts(ops, shape, router, value)
        else:
            output = experts(ops, shape, router, value, variant=variant)
        if gate is not None and shared is not None:
            # Qwen2-MoE: a sigmoid of one number per token scales the shared expert's output.
            weight = ops.saves_output("shared gate", ops.linear(gate, value))
            return ops.add(output, ops.multiply(shared, weight, "shared output"))
        return ops.add(output, dense(ops, shape, names, value)) if names else output
