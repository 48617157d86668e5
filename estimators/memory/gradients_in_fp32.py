"""Gradients at ZeRO stage 2 that are accumulated in fp32 (`data_types.grad_accum_dtype`).

The engine adds each reduced piece to a flat fp32 buffer of the rank's partition, on the GPU even if the optimizer is
offloaded. It keeps no whole gradients, except those larger than the bucket that the partition touches, until the end of
the backward pass. The optimizer steps on the buffer itself.

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py (`_use_compact_grad_partition_buffer`,
`_get_compact_grad_partition_slice`, `_add_to_grad_partition_buffer`, `copy_grads_in_partition`, `step`). Not covered:
Muon, whose matrices have no such buffer.
"""

from __future__ import annotations

from ..estimate import Formula, Terms, total_bytes
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .gradient_memory import NORM_BYTES, STEP_NOT_COVERED, SYMBOLS
from .gradients import Stage12
from .partition import RankLoad
from .trainable import ShardedTensors

_SOURCE = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
_ACCUMULATED = Formula("gradients", "4 (part + added)", f"{_SOURCE} _build_compact_grad_partition_buffer", SYMBOLS)
_STEP = Formula(
    "step_temporaries",
    "max(8 slice, s part)",
    f"{_SOURCE} get_grad_norm_direct, _get_preflattened_grad_partition",
    SYMBOLS,
    STEP_NOT_COVERED,
)


class Stage2InFp32(Stage12):
    def __init__(self, sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec, local_ranks: int) -> None:
        super().__init__(sharded, plan, optimizer, local_ranks)
        self.accumulated = self.owned = self.owned_last = 0
        # The boundary, where norms are computed, frees offloaded ones.
        self.with_layer = self.with_first_layer = 0 if self.offloaded else self.oversized_head
        self.at_head_reduction = self.head

    def _oversized(self, load: RankLoad) -> int:
        """Return the elements of a rank's tensors, without the first one, that are larger than the bucket."""
        if self.offloaded:
            return 0
        numels = (self.tensors.trainable[index] for index in load.tensors if index > self.tensors.idle)
        return sum(numel for numel in numels if numel > self.bucket_size)

    def live(
        self,
        numel: int,
        *,
        reduces: bool = False,
        copied: int = 0,
        cast: int = 0,
        filled: int = 0,
        piece: int = 0,
        whole: int = 0,
        added: int | None = None,
    ) -> Terms:
        """added: elements of the piece that is cast and added to the rank's buffer; None for the largest in a bucket if
        one is reduced."""
        terms = super().live(numel, reduces=reduces, copied=copied, cast=cast, filled=filled, piece=piece, whole=whole)
        if added is None:
            added = min(self.largest_in_bucket, self.sharded.slice) * bool(copied)
        return terms + (self._buffer(added) if reduces or self.accumulates else ())

    def _buffer(self, added: int = 0) -> Terms:
        part = self.sharded.partition
        return _ACCUMULATED.term(4 * (part + added), part=part, added=added)

    def head_reduction_terms(self) -> Terms:
        piece = min(self.oversized_head, self.sharded.last_load.slice)
        if self.offloaded:
            return self.live(self.head, reduces=True, piece=piece, whole=self.oversized_head)
        copied, cast = self._flattened(self.oversized_head), self._cast_piece(self.oversized_head)
        return self.live(self.head, reduces=True, copied=copied, cast=cast, added=piece)

    def end_terms(self) -> Terms:
        """Return the largest of the moments of each rank: the last gradient is made; the bucket before it is reduced;
        the last bucket is reduced; a last gradient larger than the bucket is reduced alone."""
        last, pending = self.last, self.fills.pending * self.fills.waits
        moments = list[Terms]()
        for load in self.sharded.loads:
            kept = self._oversized(load)
            piece = min(last, load.slice) * (self.tensors.idle in load.tensors) * (last > self.bucket_size)
            moments += [
                self.live(kept + self.live_at_end, reduces=True),
                self.live(kept + last, reduces=True, copied=pending * self.copies, filled=pending),
                self.live(kept, reduces=True, copied=self.fills.final * self.copies, filled=self.fills.final),
                self.live(
                    kept + last,
                    reduces=True,
                    copied=self._flattened(last),
                    cast=self._cast_piece(last),
                    added=piece,
                ),
            ]
            if self.offloaded:
                moments.append(self.live(last, reduces=True, piece=piece, whole=last))
        return max(moments, key=total_bytes)

    def step_terms(self) -> Terms:
        if self.offloaded:
            return self._buffer() + self._staging(0)
        # Groups are stepped one after another, and each frees its buffer. Masters in bf16 get a cast copy.
        master = self.plan.master_bytes
        per_element = master * self.optimizer.step_elements + (master if master != 4 else 0)
        waiting = [group.partition for group in self.sharded.groups]
        size = NORM_BYTES * self.sharded.slice
        done = 0
        for part in waiting:
            size = max(size, per_element * part - 4 * done)
            done += part
        return self._buffer() + _STEP.term(size, slice=self.sharded.slice, s=per_element, part=max(waiting))
