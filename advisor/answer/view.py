"""The answer as sentences, rows and figures, shared by the terminal, Markdown, the HTML report and the page. Texts are
English; a `str` is translated when it is drawn (`text.language.translate`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ...estimators.estimate import MemoryEstimate
from ...estimators.objectives import OBJECTIVES
from ...estimators.time.flops import model_flops_utilization, peak_flops_per_s
from ..question.question import Question
from ..search.candidate import NEEDS_RAM, Candidate, candidate_duration, chance
from ..text.job import hours, money, parts_sentences, price_label
from ..text.labels import batch_label, checkpointing_label, device_label, phase_title, plan_title, shape_label
from ..text.units import amount, gib, percent, rate, rough_rate, seconds
from .evidence import deepspeed_sentence, evidence_sentences
from .phases import phase_sentences
from .reasons import time_shares
from .recommendation import Recommendation
from .start import Block, next_steps, recommended_config
from .verdict import Verdict, answer_subject, answer_verdict

_LARGE_SHARE, _SMALL_SHARE = 0.1, 0.01
"""Least share of a step's time that is named without `details`, and with `details`."""

_COLUMNS = {
    "strategy": "strategy",
    "batch": "batch",
    "checkpointing": "ckpt",
    "gpu_gib": "GPU GiB",
    "ram_gib": "RAM GiB",
    "nvme_gib": "NVMe",
    "tokens_per_s": "tokens/s",
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A headline figure of the recommended plan."""

    name: Literal["speed", "gpu", "ram", "batch", "step", "job"]
    title: str
    value: str
    unit: str
    note: str = ""
    more: str = ""
    share: float | None = None
    """Used share of the capacity; None if the capacity is unknown or unlimited."""


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A plan of the ladder, or a strategy without a plan; a cell is "" if there is nothing to show."""

    candidate: Candidate | None
    strategy: str
    batch: str = ""
    """`2x8`: micro batch and accumulation steps."""
    shape: str = ""
    """`micro batch 2 x 8, checkpointing on`."""
    checkpointing: str = ""
    gpu_gib: str = ""
    ram_gib: str = ""
    nvme_gib: str = ""
    tokens_per_s: str = ""
    """"" for a plan that does not fit the GPU."""
    verdict: str
    is_chosen: bool = False
    """Whether the plan is recommended, or the closest if nothing fits."""
    fits: bool = False


def host_parts(memory: MemoryEstimate) -> dict[str, int]:
    """Return host RAM per node in bytes by component; the sum is `host_bytes_per_node`."""
    sizes = Counter({"loading the model": memory.host_bytes_per_node - memory.host_training_bytes_per_node})
    for term in (*memory.host_pinned_terms, *memory.host_pageable_terms):
        sizes[term.name] += term.size_bytes
    return +sizes


@dataclass(frozen=True)
class AnswerView:
    """All parts of an answer that are shown to people; a missing part is "" or an empty tuple."""

    answer: Recommendation
    config_path: str = "ds_config.json"
    """Configuration file named in commands, whether written or not."""
    all_candidates: bool = False
    """Whether the ladder shows every predicted plan instead of each strategy's best."""
    details: bool = False
    """Whether to show smaller shares of the step's time, all lines of the script and every launcher's command."""

    @property
    def _question(self) -> Question:
        return self.answer.question

    @property
    def _device(self) -> str:
        return device_label(self._question.cluster)

    @cached_property
    def verdict(self) -> Verdict:
        return answer_verdict(self.answer)

    @cached_property
    def subject(self) -> tuple[str, str]:
        """A title of the model, and one of the training and the machines."""
        return answer_subject(self._question)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        return () if self.answer.recommended is None else tuple(_figures(self._question, self.answer.recommended))

    # The ladder.

    @property
    def columns(self) -> Mapping[str, str]:
        """Titles of the ladder's columns, by field of `LadderRow`."""
        memory = {"gpu_gib": "GiB"} if self._question.cluster.gpu.is_cpu else {}
        return {**_COLUMNS, **memory, "tokens_per_s": f"{self._question.model.unit}/s"}

    @cached_property
    def ladder(self) -> tuple[LadderRow, ...]:
        """Rows of the ladder: per strategy its best plan, all predicted plans, or its obstacle; then plain PyTorch."""
        answer, rows = self.answer, list[LadderRow]()
        for step in answer.ladder:
            if step.candidate is None:
                rows.append(LadderRow(candidate=None, strategy=step.strategy, verdict=step.reason))
                continue
            for candidate in answer.candidates if self.all_candidates else (step.candidate,):
                if candidate.strategy == step.strategy:
                    rows.append(_row(candidate, is_chosen=candidate is answer.shown))
        if answer.pytorch_baseline is not None:
            rows.append(_row(answer.pytorch_baseline, is_chosen=False))
        return tuple(rows)

    @cached_property
    def ladder_notes(self) -> tuple[str, ...]:
        cluster, length, notes = self._question.cluster, self._question.model.fixed_len, list[str]()
        shown = [row.candidate for row in self.ladder if row.candidate]
        if length and length > 1:
            notes.append(f"tokens/s: with {length} tokens per sample")
        if any(candidate.plan.ranks_per_sample > 1 for candidate in shown):
            notes.append(f"batch: micro batch / {self._device}s that share it x accumulation; RAM, NVMe: per node")
        elif self.details:
            notes.append("batch: micro batch x accumulation; ckpt: checkpointing; RAM, NVMe: per node")
        if any(candidate.fit.reason == NEEDS_RAM for candidate in shown):
            most = gib(cluster.most_host_bytes_per_node)
            notes.append(f"needs --ram: pass it if a host has more than {most} GiB")
        if any(candidate.fit.reason.endswith("%") for candidate in shown):
            notes.append("%: the probability that it fits (--risk)")
        return tuple(notes)

    @cached_property
    def pytorch_baseline(self) -> str:
        plain, chosen = self.answer.pytorch_baseline, self.answer.recommended
        if plain is None:
            return ""
        text = f"{plan_title(plain.plan)} needs {gib(plain.device_bytes)} GiB per GPU"
        if plain.fit.fits and chosen is not None:
            share = percent(plain.tokens_per_s / chosen.tokens_per_s)
            text = f"{text} and would run at {share} of the speed"
        elif plain.fit.fits:
            text = f"{text} and fits"
        if plain.plan.sharding == "fsdp2":
            emits = f"{text}. --emit accelerate writes its configuration, too."
            return emits if plain.fit.fits else f"{text}."
        return f"{text}. It has no fp32 master weights and is only a comparison: no configuration is written for it."

    # Memory and time.

    @property
    def memory(self) -> str:
        """Title of `memory_parts`."""
        shown = self.answer.shown
        if shown is None:
            return ""
        fields = {
            "need": gib(shown.memory.device_bytes_per_gpu),
            "device": self._device,
            "strategy": shown.strategy,
            "moment": phase_title(shown.memory.peak.name),
        }
        if shown.measured_bytes is None:
            return "Memory of {strategy}: {need} GiB per {device} (peak: {moment})".format(**fields)
        return "Predicted memory of {strategy}: {need} GiB per {device} (peak: {moment})".format(**fields)

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Bytes by component of the recommended or closest plan."""
        return {} if self.answer.shown is None else self.answer.shown.memory.components

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Rollout, scoring and training phases, if completions are generated."""
        chosen = self.answer.recommended
        return () if chosen is None else tuple(phase_sentences(self._question, chosen))

    @cached_property
    def time(self) -> str:
        """Parts of a step's time."""
        chosen = self.answer.recommended
        if chosen is None:
            return ""
        shares = time_shares(chosen.time, least=_SMALL_SHARE if self.details else _LARGE_SHARE)
        return f"Step time, {seconds(chosen.time.step_s)}: {shares}."

    @cached_property
    def job(self) -> tuple[str, ...]:
        """Counts from the job's data, parts of its duration, and the utilization of the GPUs."""
        question, chosen = self._question, self.answer.recommended
        duration = None if chosen is None else candidate_duration(question, chosen)
        if duration is None:
            return ()
        packing_helps = bool(question.job and question.job.lengths) and not question.job_is_packed
        sentences = (*question.job_basis, *parts_sentences(duration, packing_helps=packing_helps))
        return (*sentences, self.utilization) if self.utilization else sentences

    @cached_property
    def utilization(self) -> str:
        """Model FLOPs utilization (MFU)."""
        model, workload, cluster = self._question.model, self._question.workload, self._question.cluster
        chosen, peak = self.answer.recommended, peak_flops_per_s(cluster.gpu, workload.matmul_precision)
        if chosen is None or peak is None or cluster.gpu.is_cpu:
            return ""
        share = model_flops_utilization(model, workload, cluster, chosen.plan, chosen.time)
        if share is None:
            return ""
        return (
            f"{rate(chosen.tokens_per_s / cluster.world_size)} tokens/s per {self._device} at full length are "
            f"{percent(share)} of the data sheet's {amount(peak, 'flop/s')} for {workload.matmul_precision} (MFU)."
        )

    # Evidence and next steps.

    @property
    def deepspeed_estimate(self) -> str:
        estimate, shown = self.answer.deepspeed_estimate, self.answer.shown
        return deepspeed_sentence(estimate, shown.device_bytes) if estimate and shown else ""

    @property
    def changes(self) -> str:
        """The title of the changes; after the search, that there are none if it found none."""
        answer = self.answer
        if not answer.changes and answer.recommended is not None:
            return ""
        if not answer.changes and self._question.cluster.gpu.is_cpu:
            return "Other methods and a shorter sequence do not make it fit."
        if not answer.changes:
            return "Other methods, a shorter sequence, and more or larger GPUs do not make it fit."
        title = "What would change the answer" if answer.recommended else "What would make it fit"
        if answer.probe_series or answer.past_probes:
            title = f"{title} (predicted, not corrected by probes)"
        return title

    @cached_property
    def evidence(self) -> tuple[str, ...]:
        return tuple(evidence_sentences(self.answer))

    @property
    def config(self) -> dict[str, Any] | None:
        """The recommended DeepSpeed configuration."""
        return recommended_config(self.answer)

    @cached_property
    def steps(self) -> tuple[Block, ...]:
        """Next steps for the user."""
        return tuple(next_steps(self.answer, self.config_path, details=self.details))


def _figures(question: Question, chosen: Candidate) -> Iterator[Figure]:
    plan, memory, cluster = chosen.plan, chosen.memory, question.cluster
    ranks, device, have = cluster.world_size, device_label(cluster), cluster.host_memory_bytes_per_node
    between = chosen.time.tokens_per_s_range
    samples, steps = plan.samples_per_step(ranks), plan.gradient_accumulation_steps
    duration, price = candidate_duration(question, chosen), question.price
    yield Figure(
        name="speed",
        title="Speed",
        value=rate(chosen.tokens_per_s),
        unit=f"{question.model.unit}/s",
        note=f"{rough_rate(between[0])} to {rough_rate(between[1])}" if between else "",
        more=f"{rate(chosen.tokens_per_s / ranks)} per {device}" if ranks > 1 else "",
    )
    yield Figure(
        name="gpu",
        title=f"Memory per {device}",
        value=gib(chosen.device_bytes),
        unit=f"of {gib(cluster.gpu.memory_bytes)} GiB",
        note=f"fits with {chance(chosen.fit.probability)}",
        share=chosen.device_bytes / cluster.gpu.memory_bytes,
    )
    nvme = f"{gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    yield Figure(
        name="ram",
        title="Host RAM" + (" per node" if cluster.nodes > 1 else ""),
        value=gib(memory.host_bytes_per_node),
        unit="GiB" if have is None else f"of {gib(have)} GiB",
        note=nvme or ("required: the RAM is unknown" if have is None else ""),
        share=None if have is None else memory.host_bytes_per_node / have,
    )
    yield Figure(
        name="batch",
        title="Batch",
        value=f"{samples:,}",
        unit=f"{OBJECTIVES[question.workload.objective].sample}{'s' * (samples != 1)} a step",
        note=f"micro batch {plan.micro_batch_size}"
        + (f" x {steps} steps" if steps > 1 else "")
        + (f", shared by {plan.ranks_per_sample}" if plan.ranks_per_sample > 1 else ""),
        more=f"checkpointing {checkpointing_label(plan)}",
    )
    yield Figure(
        name="step",
        title="One step",
        value=seconds(chosen.time.step_s),
        unit="",
        note=f"{chosen.time.tokens_per_step:,} {question.model.unit}",
    )
    if duration is not None:
        cost = ""
        if price is not None:
            cost = f"{money(duration.cost(price), price.currency)} at {price_label(price)}"
        yield Figure(
            name="job",
            title="The whole job",
            value=hours(duration.duration_s),
            unit="",
            note=cost or f"{duration.steps:,} steps",
        )


def _row(candidate: Candidate, *, is_chosen: bool) -> LadderRow:
    plan, memory = candidate.plan, candidate.memory
    return LadderRow(
        candidate=candidate,
        strategy=plan.strategy,
        batch=batch_label(plan),
        shape=shape_label(plan),
        checkpointing=checkpointing_label(plan),
        gpu_gib=gib(candidate.device_bytes),
        ram_gib=gib(memory.host_bytes_per_node),
        nvme_gib=gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "",
        tokens_per_s=rate(candidate.tokens_per_s) if candidate.fit.gpu_likely_suffices else "",
        verdict=candidate.fit.reason,
        is_chosen=is_chosen,
        fits=candidate.fit.fits,
    )
