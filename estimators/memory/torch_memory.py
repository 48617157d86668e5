"""Memory of training without DeepSpeed: torch's optimizer on the model's own weights, alone, replicated or under FSDP.

    estimate_torch_memory(model, workload, cluster, plan) -> MemoryEstimate

Components common to all plans (activations, loss, adapters, quantized weights, allocator, context) come from the same
modules as for a DeepSpeed plan. Differences, with t bytes per trainable element and w per weight:

- Weights, gradients and optimizer states share one type: no fp32 masters. Adam's states take 2 t, and its "foreach"
  step t more (the roots of the second moments). Under autocast t is 4, and without FSDP 16-bit copies of the weights
  live from the forward to the backward pass.
- FSDP (one unit per layer, full shard) divides parameters, gradients and states by N. Parameters outside the layers
  stay gathered from the first forward operation to the end of the backward pass. Layers are gathered one at a time; the
  backward pass also prefetches the next one, for frozen weights only after the first layer's backward pass.
- With reentrant checkpointing, FSDP's hooks on frozen parameters hold the input of every layer whose backward pass has
  run, and its gradient, to the end of the backward pass: 2 L - 1 tensors of B S H instead of L.
- Adafactor keeps means over the rows and the columns of each matrix that FSDP did not flatten.
- GPTBigCode's code before transformers 4.46 kept the key-value cache during training.

Source: torch 2.4 optim/adam.py `_multi_tensor_adam`; torch 2.4 distributed/fsdp/_runtime_utils.py
`_register_post_backward_reshard_only_hook`; torch aten/src/ATen/autocast_mode.cpp; transformers 4.45
modeling_gpt_bigcode.py. Compared with published runs in docs/accuracy.md. Not covered: FSDP 1's other strategies and
its mixed precision with fp32 shards; DDP's buckets; torch.compile.
"""

from __future__ import annotations

from functools import partial

from ..estimate import MEMORY_SYMBOLS, NODE_SYMBOLS, Formula, MemoryEstimate, Phase, Terms, total_bytes
from ..hardware import Cluster
from ..models.families import find_family
from ..models.lora import adapters, quantized, quantized_bytes, trained_copies
from ..models.model_shape import ModelShape, Tensor
from ..objectives import has_reference_model
from ..optimizers import optimizer
from ..plan import Plan
from ..workload import Workload
from .activations.activation_memory import ActivationMemory, activation_memory
from .activations.loss import logits_gap_bytes, output_terms
from .device_overhead import allocator_overhead, cache, library_workspace, outside_allocator
from .host_memory import loading_terms, process_terms
from .trainable import TensorSet, shard_tensors, tensor_set

_SOURCE = "estimators/memory/torch_memory.py"
_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "t": "bytes per trainable element: of a weight, its gradient, each of its states",
    "o": "bytes of optimizer states per trainable element",
    "s": "bytes of the optimizer's temporaries per trainable element",
    "outside": "elements outside the layers",
    "layers": "bytes of the layers that are gathered at this moment",
    "head": "elements of the output head",
    "layer": "trainable elements of the largest layer",
    "rows": "rows of every trainable matrix",
    "columns": "columns of every trainable matrix",
    "K": "key and value heads",
    "D": "head size",
}
_OFFLOADED = Formula(
    "offloaded_states",
    "L (2 t + o) Pt / N + L frozen / N",
    "torch 2.4 distributed/fsdp: CPUOffload keeps shards, their gradients and the optimizer on the host",
    {**NODE_SYMBOLS, "t": _SYMBOLS["t"], "o": _SYMBOLS["o"]},
)


def estimate_torch_memory(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> MemoryEstimate:
    """Return the memory of a plan without DeepSpeed's engine (`sharding` is not "zero")."""
    step = (Fsdp2Step if plan.sharding == "fsdp2" else TorchStep)(model, workload, cluster, plan)
    phases = step.phases()
    resident, expandable = total_bytes(step.resident), workload.software.expandable_segments
    transient = max(phase.allocated_bytes for phase in phases) - resident
    gap = logits_gap_bytes(model, workload, plan.micro_batch_size)
    return MemoryEstimate(
        phases=phases,
        reserved_terms=allocator_overhead(plan, transient, expandable=expandable),
        cache=partial(cache, plan=plan, cluster=cluster, gap_bytes=gap, sharded=None, software=workload.software),
        device_terms=outside_allocator(cluster, plan.zero_stage),
        host_pinned_terms=(),
        host_pageable_terms=step.host_terms(),
        host_loading_terms=step.loading_terms(),
        nvme_terms=(),
    )


def _means(tensor: Tensor) -> int:
    """Return the elements of Adafactor's row and column means of a matrix, or of a vector's whole second moment."""
    shape, numel = tensor.shape, tensor.numel
    return numel // shape[-1] + numel // shape[-2] if len(shape) > 1 else numel


class TorchStep:
    """The phases of a step of torch's optimizer, alone or under FSDP 1."""

    def __init__(self, model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> None:
        self.model = model
        self.workload = workload
        self.cluster = cluster
        self.plan = plan
        self.tensors = tensor_set(model, workload)
        self.numel = self.tensors.trainable_numel
        self.offloaded = plan.offload_param != "none"
        software, kind, full = workload.software, optimizer(workload.optimizer), workload.method == "full"
        # w, t, o and s of the formulas, and the number of shards.
        self.width = workload.weight_bytes
        self.trained: float = 4 if (software.autocast if full else software.fp32_adapters) else self.width
        # t is a mean: adapters may have more bytes per element than modules that train as whole copies.
        self.trained += (self.width - self.trained) * self.tensors.copied / self.numel
        if plan.sharding == "fsdp2":
            self.trained = 4.0
        self.states = kind.state_bytes if kind.states_have_fixed_type else kind.state_bytes / 4 * self.trained
        self.step = self.trained * kind.foreach_step_elements if workload.script_step == "foreach" else 0.0
        self.shards = (plan.hybrid_shard_size or cluster.world_size) if plan.is_fsdp else 1
        self.resident = self._resident()

    def _part(self, name: str, text: str, size: float) -> Terms:
        formula = Formula(name, text, _SOURCE, _SYMBOLS)
        return formula.term(size, t=self.trained, w=self.width, Pt=self.numel, N=self.shards)

    def _activations(self, workload: Workload) -> ActivationMemory:
        return activation_memory(
            self.model,
            workload,
            self.plan.micro_batch_size,
            self.plan.gradient_checkpointing,
            compute_capability=self.cluster.gpu.compute_capability,
        )

    def _while_training(self) -> tuple[Terms, Terms, Terms]:
        """Return the terms held in every phase, the gradients that wait for the step, and the optimizer's
        temporaries."""
        on_gpu = not self.offloaded
        return (
            self.resident + output_terms(self.model, self.workload, self.plan.micro_batch_size),
            self._part("gradients", "t Pt / N", on_gpu * self.trained * self.numel / self.shards),
            self._part("step_temporaries", "s Pt / N", on_gpu * self.step * self.numel / self.shards),
        )

    def _resident(self) -> Terms:
        resident, tensors, shards = library_workspace(self.cluster.gpu), self.tensors, self.shards
        if self.offloaded:
            return resident
        weights = (self.trained * self.numel + tensors.frozen_bytes) / shards
        resident += self._part("parameters", "(t Pt + frozen) / N", weights)
        if has_reference_model(self.workload):
            resident += self._part("reference_model", "w Pt / N", self.width * self.numel / shards)
        if self.plan.offload_optimizer != "none":
            return resident
        if optimizer(self.workload.optimizer).factored and shards == 1:
            return resident + self._part("optimizer_states", "t (rows + columns)", self._factored_bytes())
        return resident + self._part("optimizer_states", "o Pt / N", self.states * self.numel / shards)

    def _factored_bytes(self) -> int:
        """Return the bytes of Adafactor's second moments when tensors are not flattened."""
        lora = adapters(self.model, self.workload)
        elements = 0
        for tensor, count in self.model.tensor_counts:
            whole = self.workload.method == "full" and not tensor.frozen
            trained = (tensor,) if whole else lora.matrices(tensor)
            elements += count * sum(map(_means, trained))
        elements += sum(map(_means, trained_copies(self.model, self.workload).tensors))
        return round(self.trained * elements)

    def phases(self) -> tuple[Phase, ...]:
        tensors, plan, workload = self.tensors, self.plan, self.workload
        activations = self._activations(workload.under_fsdp() if plan.sharding == "fsdp" else workload)
        full, sharded = workload.method == "full", self.shards > 1
        alive, whole, stepping = self._while_training()
        earlier = whole if plan.gradient_accumulation_steps > 1 else ()
        head_bytes = (self.trained if full else self.width) * tensors.head * tensors.trains_head
        head = self._part("gradients", "t head", head_bytes)
        root = sum(tensor.numel for tensor in self.model.outside) * self.width * sharded
        # BACKWARD_PRE gathers the next layer before the current one has finished; frozen layers skip it.
        layer = _layer_bytes(tensors) * sharded * (2 if full else 1)
        in_layer = self._part("gathered_parameters", "w outside + layers", root + layer)
        unsharded: Terms = ()
        if sharded:
            layer_bytes = self.trained * sum(tensors.trainable_layer) if full else 0
            # FSDP reduces a unit's gradients after its backward pass; until then they are whole.
            unsharded = self._part("gradients", "t (layer + head)", layer_bytes + head_bytes)
        saved = activations.saved_terms + self._fp32_inputs()
        casts = self._part("autocast_copies", "2 Pt", 2 * (self.numel - tensors.copied) * (self._casts and not sharded))
        passing = alive + casts
        cast_head = self._part("autocast_copies", "w head", self._cast_head_bytes)
        outside = self._part("gathered_parameters", "w outside", root)
        first = earlier + unsharded if sharded else whole
        return (
            Phase(
                name="loss_peak",
                terms=passing
                + earlier
                + outside
                + saved
                + self._key_value_cache()
                + cast_head
                + activations.loss_terms,
            ),
            Phase(
                name="layer_backward", terms=passing + (earlier or head) + in_layer + saved + activations.block_terms
            ),
            Phase(
                name="first_layer_backward",
                terms=passing + first + in_layer + activations.block_terms + self._retained_inputs(),
            ),
            Phase(name="step", terms=alive + whole + stepping),
        )

    @property
    def _casts(self) -> bool:
        software = self.workload.software
        return software.autocast and (self.workload.method == "full" or software.fp32_adapters)

    @property
    def _cast_head_bytes(self) -> int:
        """Bytes of autocast's copy of a frozen fp32 head, made for its product and kept for the backward pass."""
        software = self.workload.software
        casts = self.workload.method == "qlora" and software.autocast and software.fp32_embeddings
        return self.width * self.tensors.head * casts

    @property
    def _hidden_elements(self) -> int:
        return self.plan.micro_batch_size * self.workload.seq_len * self.model.hidden_size

    def _fp32_inputs(self) -> Terms:
        """Return the two additional bytes per element of layer inputs in fp32."""
        layers = self.model.num_layers * self.workload.software.fp32_norms
        return self._part("fp32 layer inputs", "2 L B S H", 2 * layers * self._hidden_elements)

    def _key_value_cache(self) -> Terms:
        """Return the key-value cache. Keys and values are views of the fused projection: the cache keeps all of it."""
        if not find_family(self.model).cached_in_training or self.workload.software.transformers >= (4, 46):
            return ()
        width = 4 if self.workload.software.fp32_norms else self.width
        per_token = sum(
            block.count * (block.attention.heads + 2 * block.attention.kv_heads) * block.attention.head_dim
            for block in self.model.blocks
        )
        size = width * self.plan.micro_batch_size * self.workload.seq_len * per_token
        return self._part("key_value_cache", "L w B S (A + 2 K) D", size)

    def _retained_inputs(self) -> Terms:
        frozen = self.workload.method != "full" and self.shards > 1
        if not (frozen and self.plan.gradient_checkpointing and self.workload.software.reentrant):
            return ()
        size = (2 * self.model.num_layers - 1) * self._hidden_elements * self.width
        return self._part("retained_inputs", "(2 L - 1) B S H w", size)

    def host_terms(self) -> Terms:
        terms = process_terms(self.cluster)
        if self.offloaded:
            t, o = self.trained, self.states
            size = ((2 * t + o) * self.numel + self.tensors.frozen_bytes) / self.shards
            terms += _OFFLOADED.node_term(self.cluster.gpus_per_node, size, t=t, o=o, Pt=self.numel, N=self.shards)
        return terms

    def loading_terms(self) -> Terms:
        """Return the node's peak host memory while the model loads. Every rank loads it; under FSDP one rank per node
        (accelerate's `fsdp_cpu_ram_efficient_loading`)."""
        ranks, plan = self.cluster.gpus_per_node, self.plan.replace_fields(zero_stage=0)
        loading = 1 if self.shards > 1 else ranks
        sharded = shard_tensors(self.tensors, self.cluster.world_size)
        return process_terms(self.cluster) + loading_terms(sharded, plan, loading)


def _layer_bytes(tensors: TensorSet) -> int:
    """Return the bytes of the largest gathered layer; quantized weights are gathered quantized."""
    workload = tensors.workload
    if workload.method != "qlora":
        return tensors.layer_numel * workload.weight_bytes
    return max(
        sum(
            quantized_bytes(tensor, workload) if quantized(tensor, workload) else tensor.numel * workload.weight_bytes
            for tensor in block.tensors
        )
        for block in tensors.model.blocks
    )


_FSDP2_SOURCE = "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py; accelerate 1.15 utils/fsdp_utils.py"
_UNITS = {"w": "bytes per gathered element", "units": "elements of the units"}
_GATHERED = Formula("gathered_parameters", "w units", _FSDP2_SOURCE, _UNITS)
_WHOLE = Formula("gradients", "w units", _FSDP2_SOURCE, _UNITS)


class Fsdp2Step(TorchStep):
    """The phases of a step under FSDP2, as accelerate starts it for a Trainer. t = 4 bytes per trainable element and w
    bytes per gathered one:

    - accelerate converts trainable parameters to fp32 before it shards them, whatever their type was. Gradients and
      states are fp32 too, so that a parameter takes 16 bytes over N ranks; frozen ones keep their type.
    - Every layer is a unit, the token embedding another, the last norm and the head a third, which stays gathered from
      the forward to the backward pass. A tied embedding belongs to the third unit, and its gradient is reduced alone at
      the end.
    - A unit is gathered into one buffer and copied out of it into tensors. In the forward pass the buffer lives until
      the next unit is gathered, so that computing a layer holds two layers; in the backward pass the next unit's buffer
      is filled meanwhile.
    - A layer's gradients in w bytes are whole until its backward pass ends, then copied into a buffer that is reduced
      while the next layer computes.
    - With accumulation every micro batch reduces its gradients (`sync_each_batch`). Otherwise they would stay whole on
      every GPU, w bytes of each parameter.

    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py (`wait_for_unshard`, `post_backward`,
    `_backward_prefetch`), _fsdp_collectives.py; accelerate 1.15 utils/fsdp_utils.py `fsdp2_prepare_model`. Compared
    with torch's own memory tracker by `benchmarks.fsdp2_memory`. Not covered: offload, quantized weights,
    `torch.compile`.
    """

    def phases(self) -> tuple[Phase, ...]:
        tensors, plan, workload, w = self.tensors, self.plan, self.workload, self.width
        activations, (alive, reduced, stepping) = self._activations(workload), self._while_training()
        tied = tensors.tied
        layer, trained_layer = tensors.layer_numel, sum(tensors.trainable_layer)
        head, embedding = tensors.head, 0 if tied else tensors.embedding
        kept, head_gradient = tied * head, head * tensors.trains_head
        # The head's buffer is freed after the forward pass. The standard loss still has 2 bytes per logit to allocate.
        tokens = plan.micro_batch_size * workload.seq_len
        later = tokens * head // self.model.hidden_size if workload.loss == "standard" else 0
        buffer = 0 if tied else max(0, head - later)
        earlier = reduced if plan.gradient_accumulation_steps > 1 else ()
        saved = activations.saved_terms + self._fp32_inputs()

        def gathered(elements: int) -> Terms:
            return _GATHERED.term(w * elements, w=w, units=elements)

        def whole(elements: int) -> Terms:
            return _WHOLE.term(w * elements, w=w, units=elements)

        return (
            Phase(name="loss_peak", terms=alive + earlier + gathered(head + buffer) + saved + activations.loss_terms),
            Phase(
                name="layer_backward",
                terms=alive
                + earlier
                + gathered(2 * layer + kept)
                + whole(trained_layer + head_gradient)
                + saved
                + activations.block_terms,
            ),
            Phase(
                name="first_layer_backward",
                terms=alive
                + reduced
                + gathered(layer + kept + embedding)
                + whole(2 * trained_layer + tied * head_gradient)
                + activations.block_terms,
            ),
            Phase(
                name="gradient_reduction",
                terms=alive
                + reduced
                + gathered(embedding)
                + whole(trained_layer + (2 * head_gradient if tied else embedding * tensors.trains_embedding)),
            ),
            Phase(name="step", terms=alive + reduced + stepping),
        )
