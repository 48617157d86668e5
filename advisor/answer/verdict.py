"""The verdict of an answer: what fits, or what the closest plan lacks, and the facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..document.blocks import Fact, Sentence, Tone
from ..question.question import Largest, Question
from ..search.candidate import LEAST, Candidate, Fit, chance, fits_sentence
from ..text.labels import device_label, plan_title
from ..text.units import gib, times, whole_gib
from .facts import further_facts, loading_peak, plan_facts
from .recommendation import Recommendation


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on the whole answer."""

    tone: Tone
    headline: str
    """Such as `ZeRO-3 with optimizer in host RAM fits.`"""
    short: str
    """Such as `zero3-offload fits`."""
    sentences: tuple[Sentence, ...] = ()
    """What follows the headline: the largest value that fits, a plan to try first, what the closest plan lacks."""
    figures: Sequence[Fact] = ()
    """Speed, memory and batch of the plan that is taken."""
    facts: Sequence[Fact]
    """What else belongs to it, what its speed assumes, and the question."""


def fit_tone(fit: Fit) -> Tone:
    """Return whether a plan fits, may fit (under a condition or with a probability), or does not fit."""
    if fit.verdict == "does not fit":
        return "bad"
    return "good" if fit.fits and not fit.assumed_host_bytes else "unsure"


def answer_verdict(answer: Recommendation) -> Verdict:
    """Return the verdict on the recommended plan, or on the closest one."""
    question, chosen, risky, missed = answer.question, answer.recommended, answer.try_first, answer.closest
    plain = answer.fitting_pytorch
    tone: Tone = "bad"
    sentences = [*map(Sentence, _largest_found(question.largest, chosen))]
    risk = [] if risky is None else [Sentence(_gain_of_risk(question, risky, chosen), "unsure")]
    if chosen is not None:
        tone = fit_tone(chosen.fit)
        headline, short = (fits_sentence(name, chosen.fit) for name in (plan_title(chosen.plan), chosen.strategy))
        sentences += risk
    elif failed := _first_failure(answer):
        headline = short = "No plan ran."
        sentences.insert(0, Sentence(f"The first failure: {failed}"))
    elif risk and answer.taken is None:
        tone = "unsure"
        headline = short = "No plan is sure to fit."
        sentences += risk
    else:
        headline = short = "Nothing fits."
        if plain is not None:
            tone = "unsure" if answer.taken is None else fit_tone(plain.fit)
            headline = short = f"No DeepSpeed plan fits; {plan_title(plain.plan).replace('Plain', 'plain')} does."
        lacks = list[str]()
        if missed is not None and answer.taken is None:
            lacks += [what_lacks(question, missed), *_accepted(missed), *loading_peak(missed)]
            lacks += _margin(question, missed)
            lacks += _once_loaded(answer)
        sentences[:0] = map(Sentence, lacks)
        sentences += risk
    return Verdict(
        tone=tone,
        headline=headline,
        short=short.removesuffix("."),
        sentences=tuple(sentences),
        figures=[] if answer.taken is None else plan_facts(question, answer.taken),
        facts=[*further_facts(answer)],
    )


def _gain_of_risk(question: Question, risky: Candidate, chosen: Candidate | None) -> str:
    need, have = gib(risky.device_bytes), gib(question.cluster.gpu.memory_bytes)
    if risky.fit.limit == "host":
        need, have = gib(risky.memory.host_bytes_per_node), gib(question.cluster.most_host_bytes_per_node)
    plan = f"{risky.strategy}, micro batch {risky.plan.micro_batch_size}"
    figures = f"({need} of {have} GiB, {chance(risky.fit.probability)})"
    if chosen is None:
        return f"{plan}, probably fits {figures}: try it, and watch its memory."
    ratio = times(risky.tokens_per_s / chosen.tokens_per_s)
    return f"{plan}, probably fits too {figures} and would be {ratio} as fast: try it first."


def _first_failure(answer: Recommendation) -> str | None:
    probes = () if answer.probe_series is None else answer.probe_series.probes
    failures = (probe.result.failure for probe in probes if probe.result.failure is not None)
    message = next((failure.message for failure in failures if failure.kind != "out_of_memory"), None)
    return message if message is None or message.endswith((".", "!", "?")) else f"{message}."


def _once_loaded(answer: Recommendation) -> Iterator[str]:
    """Yield a sentence if another plan than the closest needs the most memory while the model loads: what the one that
    needs the least afterwards then needs, or that it then fits."""
    needs = dict[int, str]()
    for each in (step.candidate for step in answer.ladder):
        if each is None or each is answer.closest or each.memory.peak.name != "load":
            continue
        later = max(phase.allocated_bytes for phase in each.memory.phases if phase.name != "load")
        needs.setdefault(each.device_bytes - each.memory.allocated_bytes_per_gpu + later, each.strategy)
    if needs:
        need = min(needs)
        loaded = f"{needs[need]} needs {gib(need)} GiB once it is loaded"
        if need <= answer.question.cluster.gpu.memory_bytes:
            loaded = f"{needs[need]} fits once it is loaded ({gib(need)} GiB)"
        yield f"{loaded}; before, every GPU holds the whole model."


def what_lacks(question: Question, missed: Candidate, *, is_closest: bool = True) -> str:
    """Return all shortages of a plan that does not fit. is_closest: whether it has the smallest shortage of all."""
    memory, cluster = missed.memory, question.cluster
    have = cluster.ram_limit_bytes
    disk, room = memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node
    named = f"The closest plan, {missed.strategy}," if is_closest else "It"
    text = (
        f"{named} needs {gib(missed.device_bytes)} GiB per {device_label(cluster)} "
        f"({gib(cluster.gpu.memory_bytes)} available)"
    )
    beyond = list[str]()
    probable = f"which fits with a probability of {chance(missed.fit.probability)}"
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        text = f"{text}, {probable}"
    if missed.fit.limit == "host" or missed.host_bytes > cluster.most_host_bytes_per_node:
        note = "--ram" if have is None else f"{gib(have)} available"
        ram = f"{gib(missed.host_bytes)} GiB of RAM per node ({note})"
        beyond.append(f"{ram}, {probable}" if missed.fit.limit == "host" and missed.fit.probability else ram)
    elif disk and have is None and cluster.usual_host_bytes_per_node < missed.ram_to_fit:
        beyond.append(f"{gib(missed.host_bytes)} GiB of RAM per node (--ram)")
    if disk and not room:
        beyond.append(f"{gib(disk)} GiB of NVMe per node (--nvme)")
    elif room is not None and disk > room:
        beyond.append(f"{gib(disk)} GiB of NVMe per node ({gib(room)} available)")
    return f"{' and '.join([', '.join([text, *beyond[:-1]]), *beyond[-1:]])}."


def _accepted(missed: Candidate) -> Iterator[str]:
    """Yield the least risk at which a plan that may fit is recommended."""
    risk = next((risk for risk, least in LEAST.items() if missed.fit.probability >= least), None)
    if risk is not None:
        yield f"--risk {risk} accepts it."


def _margin(question: Question, missed: Candidate) -> Iterator[str]:
    """Yield the RAM with which a plan fits that lacks RAM, as the changes ask for it."""
    if missed.memory.host_bytes_per_node > question.cluster.most_host_bytes_per_node:
        yield f"The RAM with a margin for the error: {whole_gib(missed.ram_to_fit):,} GiB."


def _largest_found(found: Largest | None, chosen: Candidate | None) -> tuple[str, ...]:
    if found is None:
        return ()

    value = found.too_large if found.value is None else found.value
    named_value = f"Micro batch {value}"
    if found.option == "seq_len":
        named_value = f"A sequence of {value:,} tokens"
    if found.value is None:
        return (f"{named_value}, the smallest, does not fit.",)
    unknown = chosen is not None and chosen.fit.assumed_host_bytes
    fits = "fits if the host has the RAM" if unknown else "fits"
    text = f"{named_value} is the largest that {fits}"
    if found.too_large:
        return (f"{text}; {found.too_large:,} does not.",)
    return (f"{text}.",)
