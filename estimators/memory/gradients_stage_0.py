"""Stage 0: all gradients stay, w Pt, until the step.

Source: deepspeed 0.19.8 runtime/engine.py `allreduce_bucket`, runtime/fp16/fused_optimizer.py and
unfused_optimizer.py `step`.
"""

from __future__ import annotations

from ..estimate import Formula
from .gradient_memory import GRADIENT_SYMBOLS, STEP_NOT_COVERED, GradientMemory
from .terms import Terms

ALLREDUCE_BUCKET = 500_000_000
"""Elements that are flattened for one all-reduce (engine.py MEMORY_OPT_ALLREDUCE_SIZE)."""

_SOURCE = "deepspeed 0.19.8 runtime/engine.py allreduce_bucket"
_GRADIENTS = Formula("gradients", "w alive", _SOURCE, GRADIENT_SYMBOLS)
_FLATTENED = Formula("reduce_buckets", "w min(Pt, 5e8 + largest)", _SOURCE)
_STEP = Formula(
    "step_temporaries",
    "(4 + s) Pt",
    "deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, unfused_optimizer.py step",
    GRADIENT_SYMBOLS,
    STEP_NOT_COVERED,
)


class StageZero(GradientMemory):
    """Nothing is partitioned. Backward adds a new gradient, a temporary, to the one from earlier micro batches."""

    def _gradients(self, numel: int) -> Terms:
        return _GRADIENTS.term(self.width * numel, w=self.width, alive=numel)

    @property
    def _earlier(self) -> int:
        return self.trainable if self.accumulates else 0

    def forward_terms(self) -> Terms:
        return self._gradients(self._earlier)

    def tiled_loss_terms(self, tiles: int) -> Terms:
        return self._gradients(self._earlier + (self.head if tiles > 1 else 0))

    def head_terms(self) -> Terms:
        return self._gradients(self._earlier + self.head)

    head_reduction_terms = head_terms

    def layer_terms(self) -> Terms:
        return self._gradients(self._earlier + self.head + self.layer)

    reduction_terms = layer_terms

    def end_terms(self) -> Terms:
        width, trainable, largest = self.width, self.trainable, self.tensors.largest_trainable
        copied = min(trainable, ALLREDUCE_BUCKET + largest)
        return self._gradients(trainable + self.at_end - self.last) + _FLATTENED.term(
            width * copied, w=width, Pt=trainable, largest=largest
        )

    def step_terms(self) -> Terms:
        temporaries = self.optimizer.step_bytes
        if self.tensors.workload.precision == "fp32":
            formula, size = _STEP._replace(text="s Pt"), temporaries * self.trainable
        elif self.optimizer.is_adam:
            # fp32 copies of all gradients, and the flat tensor made of them.
            formula, size = _STEP._replace(text="(4 + 4) Pt"), 8 * self.trainable
        else:
            formula, size = _STEP, (4 + temporaries) * self.trainable
        return self._gradients(self.trainable) + formula.term(size, Pt=self.trainable, s=temporaries)
