"""The answer to an altered question, and what changes by it."""

from __future__ import annotations

from typing import NamedTuple

from ..question.cluster import parse_ram
from ..question.question import Question
from ..search.candidate import Candidate, candidate_duration
from ..text.job import hours, money
from ..text.units import rate, whole_gib
from .assumed_parts import network_phrase
from .recommendation import Change

RAM_AS_SOLD = ("1TB", "512GB", "256GB", "128GB", "64GB", "32GB")
"""Common sizes of a host's RAM."""


class ChangedAnswer(NamedTuple):
    """The answer to an altered question."""

    question: Question
    best: Candidate

    def outcome(self, question: Question, chosen: Candidate | None, *notes: str) -> str:
        """Return the answer as text. question, chosen: the question that was altered, and its answer. notes: further
        differences, left out if the loss differs."""
        best = self.best
        speed, unit = rate(best.tokens_per_s), question.model.unit
        text = f"{best.strategy}, {speed} {unit}/s"
        rounds = best.plan.bf16_optimizer_states and (chosen is None or not chosen.plan.bf16_optimizer_states)
        rounds |= best.plan.quantizes_collectives and (chosen is None or not chosen.plan.quantizes_collectives)
        if rounds:
            text = f"{text}, less exact"
        if chosen is None:
            text = f"fits: {text}"
            if not best.plan.pin_memory:
                text = f"{text}, pin_memory false"
        else:
            ratio = best.tokens_per_s / chosen.tokens_per_s
            network = network_phrase(self.question.cluster)
            assumed = f" at {network}" if network and network != network_phrase(question.cluster) else ""
            text = f"{text} ({ratio:.{1 if ratio >= 1 else 2}f} x{assumed})"
            if chosen.plan.pin_memory and not best.plan.pin_memory:
                text = f"{text}, pin_memory false"
        need = best.fit.assumed_host_bytes
        if need > (0 if chosen is None else chosen.fit.assumed_host_bytes):
            text = f"{text}, needs {whole_gib(need):,} GiB RAM"
        elif chosen is not None and self._suits_smaller_host(chosen):
            text = f"{text}, {whole_gib(best.ram_to_fit):,} GiB RAM"
        if (loss := self.question.workload.loss) != question.workload.loss:
            return f"{text}, {loss} loss"
        return ", ".join((text, *notes))

    def change(self, flags: str, outcome: str, *, assumed: bool = False) -> Change:
        """Return the change of these flags to the answer, with its figures."""
        return Change(
            flags=flags,
            outcome=outcome,
            assumed=assumed,
            strategy=self.best.strategy,
            tokens_per_second=self.best.tokens_per_s,
            device_bytes_per_gpu=self.best.device_bytes,
            host_bytes_per_node=self.best.memory.host_bytes_per_node,
            assumed_host_bytes=self.best.fit.assumed_host_bytes,
        )

    def _suits_smaller_host(self, chosen: Candidate) -> bool:
        """Whether the answer that is changed depends on the RAM, and a smaller size of it suffices for this one. An
        answer to a question with an amount of RAM has it in its flags."""
        asks = chosen.fit.assumed_host_bytes and self.question.cluster.host_memory_bytes_per_node is None
        return bool(asks) and too_small(self.best) < too_small(chosen)

    def job_outcome(self, question: Question, chosen: Candidate | None) -> str:
        """Return the outcome with the job's duration, and with its cost if the price still applies to these
        machines."""
        text, price = self.outcome(question, chosen), self.question.price
        duration = candidate_duration(self.question, self.best)
        if duration is None or self.question.workload.seq_len != question.workload.seq_len:
            return text
        was, now = question.cluster, self.question.cluster
        text = f"{text}, job {hours(duration.duration_s)}"
        same_node = price is not None and (price.unit == "gpu" or was.gpus_per_node == now.gpus_per_node)
        if price is not None and same_node and was.gpu.name == now.gpu.name:
            text = f"{text}, {money(duration.cost(price), price.currency)}"
        return text


def too_small(candidate: Candidate) -> int:
    """Return how many of `RAM_AS_SOLD` are too small for a plan."""
    return sum(parse_ram(size)[0] < candidate.ram_to_fit for size in RAM_AS_SOLD)
