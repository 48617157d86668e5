"""Stage 3: one shard of every gradient stays, in a buffer that is never freed.

Source: deepspeed 0.19.8 runtime/zero/stage3.py (`_setup_for_real_optimizer`, `partition_grads`,
`_prepare_fp32_grad_for_sub_group`). Checked against dry runs of that engine.
"""

from __future__ import annotations

from ..estimate import Formula, total_bytes
from .gradient_memory import GRADIENT_SYMBOLS, NORM_BYTES, STEP_NOT_COVERED, GradientMemory
from .partition import SWAP_MIN_BYTES, shard_numel
from .terms import Terms
from .trainable import groups_on_gpu, optimizer_group_numels, shards_below

NORM_CHUNK = 250_000_000
"""Elements that the offload casts for the norm at a time (stage3.py `_constant_buffered_norm2`)."""

_SOURCE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py"
_SYMBOLS_3 = {
    **GRADIENT_SYMBOLS,
    "piece": "one rank's part of a gradient on its way to the host",
    "chunk": "elements of which the norm is taken at a time",
    "waiting": "fp32 elements that wait on the GPU for their way to the disk",
    "shard": "one rank's shard of the largest tensor",
}
_BUCKET_3 = Formula(
    "reduce_buckets",
    "w (bucket + copied)",
    f"{_SOURCE_3} _setup_for_real_optimizer, runtime/comm/coalesced_collectives.py reduce_scatter_coalesced",
    _SYMBOLS_3,
)
_GRADIENTS_3 = Formula("gradients", "w (shards + alive)", f"{_SOURCE_3} grad_partitions_flat_buffer", _SYMBOLS_3)
_STAGING_3 = Formula(
    "offload_staging",
    "w piece + max(8 min(piece, chunk), m piece) + 4 waiting",
    f"{_SOURCE_3} partition_grads, _offload_grad_partition_at_boundary",
    _SYMBOLS_3,
)
# torch's AdamW takes the root of a whole sub-group's second moments. (In a dry run it takes its loop over tensors,
# which needs as much again for the quotient.)
_KEPT_STEP_3 = Formula(
    "step_temporaries",
    "m G",
    "torch 2.13 optim/adam.py _multi_tensor_adam (exp_avg_sq_sqrt), for the sub-groups that stay on the GPU",
    _SYMBOLS_3,
)
_STEP_3 = Formula(
    "step_temporaries",
    "max(8 shard, {cast} G, (m + s) G{overflow})",
    f"{_SOURCE_3} get_grad_norm_direct, _prepare_fp32_grad_for_sub_group, has_overflow",
    _SYMBOLS_3,
    STEP_NOT_COVERED,
)


class StageThree(GradientMemory):
    """Whole gradients live until they are reduced. Reduce-scatter interleaves a bucket's tensors in a copy; one tensor
    that N divides is reduced in place. Gradients that travel in 4 bits are cast to fp16 first where they are not, a
    whole bucket, and then quantized tensor by tensor, as much sent as received
    (runtime/comm/coalesced_collectives.py `all_to_all_quant_reduce`)."""

    def _copied(self, numel: int, largest: int) -> int:
        """Elements that are copied while `numel` are reduced, the largest tensor having `largest` of them; a part of
        the size of a gradient's where they are in fewer bits."""
        if not self.plan.zero_quantized_gradients:
            return numel * self.copies
        cast = numel if self.tensors.workload.precision == "bf16" else 0
        # Bytes of an element: sent and received in the node, then a node's sum of 1 / L of them, and that in fp16.
        quantized = 0.5 + 0.5 + (0.5 + 0.5 + 2) / self.local_ranks
        return cast + int(quantized * min(numel, largest)) // self.width

    def _bucket(self, copied: int = 0) -> Terms:
        size = self.width * (self.bucket_size + copied)
        return _BUCKET_3.term(size, w=self.width, bucket=self.bucket_size, copied=copied)

    def _gradients(self, whole: int) -> Terms:
        shards = 0 if self.offloaded else self.sharded.shard_total
        return _GRADIENTS_3.term(self.width * (shards + whole), w=self.width, shards=shards, alive=whole)

    def _staging(self, numel: int, in_bucket: int = 0) -> Terms:
        """What a gradient of `numel` elements takes on its way to the host or the disk, among others in its bucket."""
        if not self.offloaded:
            return ()
        # Tensor by tensor: its shard comes to the GPU, is cast for the norm, and then to fp32 for its way out.
        piece = shard_numel(numel, self.sharded.world_size)
        waiting = 0
        if self.plan.offload_optimizer == "nvme":
            # The fp32 gradients of a whole bucket wait on the GPU; fragments too small for the disk, until the step.
            waiting = shards_below(self.sharded, SWAP_MIN_BYTES // 4)[0]
            waiting += max(0, shard_numel(in_bucket, self.sharded.world_size) - piece)
        master = self.plan.master_bytes
        size = self.width * piece + max(NORM_BYTES * min(piece, NORM_CHUNK), master * piece) + 4 * waiting
        return _STAGING_3.term(size, w=self.width, m=master, piece=piece, chunk=NORM_CHUNK, waiting=waiting)

    def forward_terms(self) -> Terms:
        return self._gradients(0) + self._bucket()

    def tiled_loss_terms(self, tiles: int) -> Terms:
        return self._gradients(self.head if tiles > 1 else 0) + self._bucket()

    def head_terms(self) -> Terms:
        return self._gradients(self.head) + self._bucket()

    def head_reduction_terms(self) -> Terms:
        in_place = not self.plan.zero_quantized_gradients and self.large_head % self.sharded.world_size == 0
        copied = 0 if in_place else self._copied(self.large_head, self.large_head)
        return self._gradients(self.head) + self._bucket(copied) + self._staging(self.large_head)

    def layer_terms(self) -> Terms:
        return self._gradients(self.layer + self.tied_head) + self._bucket() + self._staging(self.layer)

    def reduction_terms(self) -> Terms:
        # The largest tensor of a full bucket: an untied head that fits is in the first one.
        largest = max(self.layer, 0 if self.tied_head or self.large_head else self.head)
        copied = self._bucket(self._copied(self.fills.flushed, largest))
        return self._gradients(self.layer + self.tied_head) + copied + self._staging(largest, self.fills.flushed)

    def end_terms(self) -> Terms:
        """The worst of four: the last gradient is made; the bucket before it is reduced while it waits; the last bucket
        is reduced; that gradient is."""
        pending, final = self.fills.pending * self.fills.waits, self.fills.final
        waits = self._gradients(self.last) + self._bucket(self._copied(pending, self.layer))
        last_bucket = self._gradients(0) + self._bucket(self._copied(final, self.layer))
        alone = self._copied(self.last, self.last) if self.plan.zero_quantized_gradients else 0
        return max(
            self._gradients(self.at_end) + self._bucket(),
            waits + self._staging(min(pending, self.layer), self.fills.pending),
            last_bucket + self._staging(min(final, self.layer), final),
            self._gradients(self.last) + self._bucket(alone) + self._staging(self.last),
            key=total_bytes,
        )

    def step_terms(self) -> Terms:
        if self.offloaded:
            group = max(groups_on_gpu(self.sharded, self.plan), default=0)
            master = self.plan.master_bytes
            return self.forward_terms() + self._staging(0) + _KEPT_STEP_3.term(master * group, m=master, G=group)
        width, sharded, temporaries = self.width, self.sharded, self.optimizer.step_bytes
        group = max(optimizer_group_numels(sharded, self.plan.sub_group_size))
        # fp16 looks for overflow in the whole buffer at once: |g|, and whether it is infinite.
        overflow = (width + 1) * sharded.shard_total if self.tensors.workload.precision == "fp16" else 0
        master = self.plan.master_bytes
        cast, cast_text = (width, "w") if width == master else (width + master, "(w + m)")
        text = _STEP_3.text.format(cast=cast_text, overflow=", (w + 1) shards" if overflow else "")
        return self.forward_terms() + _STEP_3._replace(text=text).term(
            max(NORM_BYTES * sharded.largest_shard, cast * group, int((master + temporaries) * group), overflow),
            w=width,
            m=master,
            shard=sharded.largest_shard,
            G=group,
            s=temporaries,
            shards=sharded.shard_total,
        )
