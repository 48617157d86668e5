"""ZeRO-3's gathered parameters: the elements that each GPU holds whole during a step.

Every module gathers its tensors before it runs and releases them after, but five rules keep more than one module
gathered; each is a method of `_Gathering`. Source: deepspeed 0.19.8 runtime/zero/, in the files that the methods name.
Compared with dry runs of that engine. Not covered: the first two iterations, which record the trace and do not
prefetch; modules that are used several times in a pass; mixtures of experts that skip experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, compress, repeat
from typing import NamedTuple

from ..objectives import breaks_traces, keeps_gathered
from ..plan import Plan
from .partition import SWAP_MIN_BYTES
from .trainable import TensorSet


class GatheredParameters(NamedTuple):
    """Elements that are whole on each GPU, in the phases of a step (`gradient_memory.GradientMemory`)."""

    persistent: int = 0
    """Tensors that are never released; not included in the other fields."""
    first_layer: int = 0
    """In the forward pass of a layer before the last: everything prefetched, and the fullest flat buffer."""
    layers_after_first: int = 0
    """Layers that run after that buffer has been used up."""
    last_layer: int = 0
    """In the last layer's forward pass, including the prefetched head."""
    kept: int = 0
    """After the forward pass."""
    available: int = 0
    """At the loss: elements that the engine counts as whole and does not gather again."""
    loss: int = 0
    """At the loss; the following fields are in the order of the backward pass."""
    head: int = 0
    head_reduction: int = 0
    recomputed: int = 0
    layer: int = 0
    product: int = 0
    """While the gradient of a layer's largest tensor is made."""
    reduction: int = 0
    end: int = 0
    arriving_at_first_layer: int = 0
    arriving_at_last_layer: int = 0
    arriving_at_loss: int = 0
    arriving_in_layer: int = 0
    """The `arriving` fields: the part of the fields above that is still in transfer in 8 bits."""
    reference: int = 0
    """In the forward pass of the policy without its adapters, which follows a recorded trace."""
    unreleased: int = 0
    """In the first layer's backward pass, if a pass without gradients came before it; otherwise 0."""


class _Limits(NamedTuple):
    """The plan's settings that determine gathering, as a cache key; in elements unless stated."""

    ranks: int
    threshold: int
    max_live: int
    max_reuse: int
    prefetch: int
    reduce_bucket: int
    checkpointing: bool
    swap_buffers: int
    """Number of tensors that can be read from NVMe at a time; 0 without NVMe."""
    bits_8: bool
    """Whether weights are gathered in 8 bits."""
    offloaded: bool
    autoep_size: int


def gathered_parameters(tensors: TensorSet, plan: Plan, world_size: int) -> GatheredParameters:
    """Return the elements that stage 3 holds whole under a plan; zeros with one rank, whose shard is the tensor."""
    if plan.zero_stage < 3 or (world_size == 1 and plan.offload_param == "none"):
        return GatheredParameters()
    in_memory = tensors.trainable_numel if plan.offload_param != "nvme" else plan.param_max_in_cpu * world_size
    from_disk = plan.offload_param == "nvme" and (tensors.frozen or in_memory < tensors.trainable_numel)
    limits = _Limits(
        ranks=world_size,
        threshold=plan.stage3_param_persistence_threshold,
        # `_fetch_sub_module_impl` stops its prefetch at the first parameter that is still on NVMe.
        max_live=min(plan.stage3_max_live_parameters, in_memory) if from_disk else plan.stage3_max_live_parameters,
        max_reuse=plan.stage3_max_reuse_distance,
        prefetch=plan.stage3_prefetch_bucket_size,
        reduce_bucket=plan.reduce_bucket_size,
        checkpointing=plan.gradient_checkpointing,
        swap_buffers=plan.param_buffer_count if from_disk else 0,
        bits_8=plan.zero_quantized_weights,
        offloaded=plan.offload_param != "none",
        autoep_size=plan.autoep_size,
    )
    found, workload = _gathered(tensors, limits), tensors.workload
    breaks = breaks_traces(workload, plan)
    if not breaks and not workload.precompute_ref_log_probs:
        return found
    unprefetched = _gathered(tensors, limits._replace(prefetch=0, max_reuse=0))
    # The engine that TRL made for the pass before training keeps its hooks on the policy. They release every module
    # after its forward pass.
    if not breaks and _Gathering(tensors, limits).gathers_everything:
        # Everything was prefetched in the forward pass, and is gathered again module by module.
        return found._replace(
            kept=unprefetched.kept, available=unprefetched.available, loss=unprefetched.loss, head=unprefetched.head
        )
    if not breaks:
        # The head is gathered separately, and the engine that prefetches does not count it.
        return _gathered(tensors, limits._replace(max_live=limits.max_live + tensors.head))
    if workload.method != "full":
        kept = keeps_gathered(workload, plan)
        unreleased, end = (
            _Gathering(tensors, limits._replace(prefetch=0)).unreleased() if kept else (0, unprefetched.end)
        )
        reference = max(found.first_layer, found.last_layer)
        return unprefetched._replace(reference=reference, unreleased=unreleased, end=end)
    return unprefetched._replace(first_layer=found.first_layer, last_layer=found.last_layer)


@lru_cache(maxsize=256)
def _gathered(tensors: TensorSet, limits: _Limits) -> GatheredParameters:
    return _Gathering(tensors, limits).gathered_parameters()


class _Gathering:
    """The sizes of one model's tensors, and the elements that each rule keeps gathered."""

    def __init__(self, tensors: TensorSet, limits: _Limits) -> None:
        # TRL's chunked head is gathered separately, at the loss and in its backward pass, not by a module of its own
        # (trl 1.16 trainer/utils.py `maybe_gather_lm_head_ctx`).
        separate_head = tensors.workload.loss == "chunked-head"
        self.tensors = tensors
        self.limits = limits
        self.tied = tensors.tied and not separate_head
        # DeepSpeed limits persistent parameters in total as well, by a number that is unlimited by default.
        self.persistent = tensors.numel - self._released(tensors.trainable + tensors.frozen)
        self.layer_tensors = [numel for numel in tensors.layer_tensors if numel > limits.threshold]
        self.largest_tensor = max(self.layer_tensors, default=0)
        self.layer = sum(self.layer_tensors)
        head = self._released([tensors.head])
        self.head = 0 if separate_head else head
        self.separate_head = head if separate_head else 0
        self.embedding = self._released([tensors.embedding])
        self.embeddings = self._released(tensors.embeddings)
        self.forward = tensors.numel - self.persistent - tensors.unread - (0 if tensors.tied else self.separate_head)
        """Elements that the forward pass gathers."""
        self.layers = max(0, self.forward - self.embedding - (0 if self.tied else self.head))
        self.keeps_experts_local = tensors.spread_numel > 0 and limits.ranks == limits.autoep_size
        """Whether every expert is on one rank only (AutoEP over all ranks), and so is not gathered."""
        experts = compress(tensors.trainable, tensors.spread)
        self.local_experts = self._released(experts) if self.keeps_experts_local else 0
        self.prefetches = limits.prefetch > 0 and limits.max_live > 0
        self.prefetch_limit = limits.max_live if self.prefetches else 0
        self.prefetched = self.prefetch_limit + self.largest_tensor if self.prefetches else 0
        """Elements that are whole when the prefetch stops, for the worst start within a layer."""
        self.gathers_everything = self.prefetches and not limits.swap_buffers and self.prefetched >= self.forward
        if not self.gathers_everything:
            starts = range(len(self.layer_tensors))
            reached = (self._numel_up_to(self.prefetch_limit, start) for start in starts)
            self.prefetched = max(reached, default=self.prefetch_limit)
        # A frozen embedding takes no part in the backward pass unless it is also the head, or checkpointing makes its
        # output require a gradient.
        stays = self.embedding if limits.checkpointing or self.tied else 0
        skipped = 0 if tensors.trains_embedding else self.embeddings - stays
        self.skipped_in_backward = skipped
        self.embedding_in_backward = 0 if tensors.tied else max(0, self.embedding - skipped)
        self.fetch_factor = 1 + 1 / limits.ranks if limits.offloaded and not self.prefetches else 1
        """Elements alive per gathered one: an offloaded shard goes to the GPU first, and without prefetch it is alive
        with the tensor gathered from it."""
        self.backward = self.forward - skipped * self.gathers_everything

    def _released(self, numels: Iterable[int]) -> int:
        """Rule 1: a tensor with at most `stage3_param_persistence_threshold` elements is never released.

        Source: parameter_offload.py `mark_persistent_parameters`.
        """
        return sum(numel for numel in numels if numel > self.limits.threshold)

    def _numel_up_to(self, numel: int, start: int = 0) -> int:
        """Return the elements of layers' tensors in the order of the backward pass, from the `start`-th of a layer on,
        until their sum reaches `numel`."""
        if numel <= 0 or not self.layer:
            return 0
        backward = self.layer_tensors[::-1]
        whole, rest = divmod(numel, self.layer)
        sums = accumulate(backward[start:] + backward[:start], initial=0)
        return whole * self.layer + next(reached for reached in sums if reached >= rest)

    def _prefetched_embedding(self) -> int:
        """Return the gathered elements when the embedding is the tensor that crosses the limit, after whole layers that
        reentrant checkpointing keeps; 0 if no such layer exists."""
        layers = (self.prefetch_limit - self.separate_head - 1) // self.layer if self.layer else 0
        reentrant = self.limits.checkpointing and self.tensors.workload.software.reentrant
        if layers < 1 or not reentrant or self.limits.swap_buffers:
            return 0
        return self.separate_head + layers * self.layer + self.embedding_in_backward

    def _reused(self) -> int:
        """Rule 2: a tensor is not released if it is needed again within `stage3_max_reuse_distance` elements.

        The last layers of the forward pass stay for the backward pass. A tensor followed by T elements of layers is
        used again after 2 (T + head) elements, or 3 T + 2 head with recomputation. The tensor that reaches the distance
        also stays. Source: partitioned_param_coordinator.py `__params_to_release`.
        """
        # The engine counts every module between two uses, and recomputation is a third pass of the layers.
        passes, reach = 3 if self.limits.checkpointing else 2, self.limits.max_reuse - 2 * self.head
        reused = min(self.layers, self._numel_up_to(-(-reach // passes)))
        if reused == self.layers and reach > passes * self.layers and not self.tied:
            reused += self.embedding
        return reused

    def _flat_buffer(self, queue: list[int], places: Iterable[int]) -> int:
        """Rule 3: every call of a submodule prefetches at least one more tensor while fewer than
        `stage3_max_live_parameters` elements are alive.

        There are more calls than tensors, so the prefetch runs ahead up to that limit (`prefetch_limit`), and the
        tensor that crosses it is gathered whole (`prefetched`). With the default of 1e9 a smaller model is gathered as
        a whole (`gathers_everything`). A prefetch of several tensors arrives in one flat buffer, from
        which all are copied when the first of them is used. The buffer lives until the last one is used, possibly in
        another layer. From NVMe, the prefetch reaches only as far as the swap buffers. Source:
        partitioned_param_coordinator.py `_fetch_sub_module_impl`, partition_parameters.py
        `AllGatherCoalescedHandle.wait`.

        queue: the tensors of a layer in prefetch order. places: indices in `queue`; the returned size is that of the
        largest buffer alive after one of them.
        """
        limits = self.limits
        flat = 0
        if limits.ranks > 1 and self.prefetches and not self.gathers_everything and not limits.swap_buffers and queue:
            whole, rest = divmod(limits.prefetch, self.layer)
            for start in range(len(queue)):
                sums = [*accumulate(queue[start:] + queue[:start], initial=0)]
                last = next(place for place, reached in enumerate(sums) if reached >= rest)
                after = whole * len(queue) + last - 1
                if any((place - start) % len(queue) < after for place in places):
                    flat = max(flat, whole * self.layer + sums[last])
        if limits.bits_8 and not self.gathers_everything:
            return self._in_8_bits(flat or self.largest_tensor, self.largest_tensor)
        return flat

    def _in_8_bits(self, flat: int, widest: int) -> int:
        """Return the elements, in the model's type, of a flat buffer in 8 bits and of its dequantized fp16. Each tensor
        is assembled in fp16 before it is cast."""
        return flat * 3 // 2 + widest * (self.tensors.workload.precision == "bf16")

    def _viewed(self, reused: int) -> int:
        """Rule 4: autograd keeps the tensors that it saved, released or not.

        DeepSpeed's linear layer saves no weight (linear.py). Fused experts are read through a transposed view, which
        keeps the whole tensor from the forward to the backward pass: without checkpointing the experts of all layers
        that are not whole anyway.
        """
        if self.limits.checkpointing or self.gathers_everything or not self.layers or self.keeps_experts_local:
            return 0
        # Layers that are whole at the loss hold these tensors anyway.
        return self.tensors.viewed * (self.layers - reused) // self.layers

    def unreleased(self) -> tuple[int, int]:
        """Rule 5: a forward pass without gradients, between the forward and the backward pass of the same modules,
        resets the counters that trigger the release of their weights. The backward pass then releases none of them
        before it ends.

        Return the elements in the first layer's backward pass and in the embedding's. Source: parameter_offload.py
        `_post_backward_module_hook` (`ds_grads_remaining`), partitioned_param_coordinator.py
        `update_recompute_parameters`, `release_backward_leftovers`.
        """
        whole = self.layers + (self.separate_head or self.head)
        return whole, whole + int(self.embedding_in_backward * self.fetch_factor)

    def _copied(self, numel: int, outside: int = 0) -> int:
        """Return the part of `numel` whole elements that are copies; `outside` of them are not in layers. Experts on
        one rank only are not copied, though they count for every limit (partition_parameters.py
        `_no_gather_coalesced`)."""
        in_layers = min(self.layers, max(0, numel - outside))
        return numel - in_layers * self.local_experts // self.layers if self.local_experts else numel

    def _swapped_in(self, buffers: int) -> int:
        """Return the elements of layers in `buffers` tensors from NVMe, largest first: whole layers, then tensors of
        one."""
        smallest = SWAP_MIN_BYTES // self.tensors.workload.weight_bytes * self.limits.ranks
        swapped = sorted((numel for numel in self.layer_tensors if numel >= smallest), reverse=True)
        if not swapped:
            return self.layer
        layers, rest = divmod(buffers, len(swapped))
        return layers * self.layer + sum(swapped[:rest])

    def _in_forward(self, flat: int) -> tuple[tuple[int, int], int, int]:
        """Return the elements in the forward pass of a layer before the last with the number of layers after it, in the
        last layer's, and in a flat buffer that lives from there to the end of the backward pass, without views."""
        if not self.prefetches:
            return (0, 0), 0, 0
        last = self._copied(min(self.forward, max(self.prefetch_limit + self.head, self.prefetched)), self.head) + flat
        if not self.gathers_everything:
            return (0, 0), last, 0
        flats, limits, groups = [0], self.limits, list[list[int]]()
        # The prefetch goes on in the backward pass: an embedding that was released joins the last buffer, and keeps it.
        # Not that of a frozen part: in dry runs of a projector alone it is not gathered again.
        is_frozen_part = self.tensors.workload.method == "full" and not self.tensors.trains_embedding
        refetches = not is_frozen_part and self.embedding_in_backward > 0 and self._reused() <= self.layers
        if limits.ranks > 1:
            numels = self.tensors.frozen
            numels += self.tensors.trainable if self.tensors.workload.method == "full" else ()
            is_expert = self.tensors.spread or repeat(False)
            released = [
                (numel, kind) for numel, kind in zip(numels, is_expert, strict=False) if numel > limits.threshold
            ]
            if refetches:
                released.append((self.embedding, False))
            groups = _flat_buffers(released, limits.prefetch, (False,) if self.keeps_experts_local else (False, True))
            if refetches and not groups[-1]:  # alone, it has no buffer
                refetches = bool(groups.pop())
            flats = [sum(group) for group in groups]
            if limits.bits_8:
                flats = [self._in_8_bits(sum(group), max(group, default=0)) for group in groups]
        fullest = max(flats[:-1], default=0)
        # Of buffers about as full as the fullest, the last one meets the most activations.
        place = max((place for place, size in enumerate(flats[:-1]) if size > 0.9 * fullest), default=0)
        after = sum(map(sum, groups[place + 1 :])) - (0 if self.tied else self.head) - self.embedding * refetches
        last -= self.skipped_in_backward
        before_last = last + flats[place] * (fullest > 0), -(-max(0, after) // max(1, self.layer))
        return before_last, last + flats[-1], flats[-1] * refetches

    def gathered_parameters(self) -> GatheredParameters:
        limits, head, ahead = self.limits, self.head, self.prefetch_limit
        forward_order, backward_order, anywhere = (
            self.layer_tensors,
            self.layer_tensors[::-1],
            range(len(self.layer_tensors)),
        )
        flat, reused = self._flat_buffer(backward_order, anywhere), self._reused()
        recomputed = in_backward = in_product = flat
        if limits.bits_8 or self.tensors.model.module:
            pass
        elif limits.checkpointing:  # A layer is gathered for its recomputation and stays for the backward pass.
            recomputed = self._flat_buffer(forward_order, anywhere)
            in_backward = in_product = self._flat_buffer(forward_order, anywhere[-1:])
        else:
            in_product = self._flat_buffer(
                backward_order, [place for place in anywhere if backward_order[place] == self.largest_tensor]
            )
        (first_layer, layers_after_first), last_layer, kept_flat = self._in_forward(flat)
        recomputed, in_backward, in_product = recomputed + kept_flat, in_backward + kept_flat, in_product + kept_flat
        loss, flat_at_loss = reused + (head if limits.max_reuse else 0), 0
        if self.prefetches:
            # If the head alone does not reach the limit, the tensors after it are prefetched already, unless no module
            # owns the head.
            further = 0 if self.separate_head else head if head >= ahead else self.prefetched
            loss = min(self.backward, max(loss, further))
            # A prefetch that continues after the head takes tensors of the backward pass.
            flat_at_loss = (flat if head < min(ahead, limits.prefetch) else 0) + kept_flat
        in_layer = self.layer if limits.checkpointing and limits.max_reuse else self.largest_tensor
        if self.prefetches and limits.swap_buffers:
            in_layer = max(in_layer, self._swapped_in(limits.swap_buffers))
            reused = min(self.layers, self._swapped_in(limits.swap_buffers - 1))
            last_layer = loss = max(loss, head + reused)
        # A tied head is still gathered if nothing was released.
        lone_head = 0 if self.tensors.tied and loss >= self.forward else self.separate_head
        viewed = self._viewed(reused)
        # The head is an external parameter of the model, which would release it in its backward hook. The model has
        # none, as token ids require no gradient (parameter_offload.py `ZeROOrderedDict.__getitem__`).
        kept_head = 0 if self.tensors.tied else self.separate_head
        reached = max(self.prefetched + kept_head * self.gathers_everything, self._prefetched_embedding())
        whole_in_layer = min(self.backward + kept_head, max(reused, reached, in_layer))
        layer = whole_in_layer + in_backward
        fetched = self.fetch_factor
        # When the bucket is full for the first time, that number of elements has been released, and less is left to
        # prefetch.
        reduced = min(limits.reduce_bucket, self.tensors.trainable_numel)
        first = last = at_loss = within_layer = 0
        if limits.bits_8:
            whole = max(reused, in_layer)
            if self.gathers_everything:
                first = self.backward - self.embedding
            elif not self.tensors.frozen:  # with adapters, the layers are within the reuse distance
                last = last_layer - flat - whole
            at_loss, within_layer = loss - reused - head, layer - flat - whole
        return GatheredParameters(
            persistent=self.persistent,
            first_layer=first_layer,
            layers_after_first=layers_after_first,
            last_layer=last_layer + max(0, viewed - self.tensors.viewed_layer),
            kept=self._copied(loss, head) + viewed,
            available=self._copied(loss, head) + lone_head,
            loss=self._copied(loss, head) + viewed + lone_head + flat_at_loss,
            head=self._copied(max(loss, int(head * fetched)), head) + viewed + lone_head + flat_at_loss,
            # After the head is released, the prefetch takes its place.
            head_reduction=self._copied(min(max(0, self.backward - head), max(loss - head, ahead))) + viewed,
            recomputed=self._copied(whole_in_layer + recomputed) + viewed if limits.checkpointing else 0,
            layer=self._copied(layer) + viewed,
            product=self._copied(whole_in_layer + in_product) + viewed,
            reduction=self._copied(min(whole_in_layer + in_product, max(in_layer, self.backward - reduced))) + viewed,
            arriving_at_first_layer=max(0, first),
            arriving_at_last_layer=max(0, last),
            arriving_at_loss=max(0, at_loss),
            arriving_in_layer=max(0, within_layer),
            # The prefetch has fetched all embeddings by then, those of positions and segments too.
            end=min(self.backward, self.embeddings) if self.prefetches else int(self.embedding * fetched),
        )


def _flat_buffers(tensors: Iterable[tuple[int, bool]], prefetch: int, copied: Sequence[bool]) -> list[list[int]]:
    """Return the elements of the tensors in the flat buffers of each prefetch, when everything is prefetched in the
    forward pass. A prefetch has one buffer per `copied` kind (a different set of ranks shares experts) and none for a
    single tensor. tensors: elements and kind of each."""
    groups: list[list[tuple[int, bool]]] = [[]]
    filled = 0
    for numel, kind in tensors:
        if filled >= prefetch:
            groups.append([])
            filled = 0
        groups[-1].append((numel, kind))
        filled += numel
    by_kind = ([[numel for numel, kind in group if kind is wanted] for wanted in copied] for group in groups)
    return [[numel for buffer in buffers if len(buffer) > 1 for numel in buffer] for buffers in by_kind]
