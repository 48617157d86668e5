"""The answer for people: the verdict first, then the ladder, the memory, the reasons, the next command. 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...estimators.hardware.cluster import Cluster
from ...estimators.job.utilization import model_flops_utilization, peak_flops_per_s
from ...estimators.models.model_shape import ModelShape
from ...estimators.phrase import Phrase, listed, named, phrase
from ...estimators.plan import Plan
from ...estimators.software import DEFAULT, Software
from ...estimators.workload import Workload
from ..job.words import parts_sentences, verdict_sentence
from ..question.question import Question
from ..terminal.bar import bar
from ..terminal.language import spoken
from ..terminal.lines import WIDTH, blank, ended, padded, row, sentence, styled
from ..terminal.units import age, amount, count, gib, percent, rate, rough_rate, seconds
from ..terminal.words import (
    batch_words,
    checkpointing_word,
    checkpointing_words,
    cluster_title,
    device_word,
    method_title,
    phase_title,
    plan_title,
)
from .candidate import Candidate, duration_of
from .fit import MOST_HOST_BYTES, chance, fits_sentence
from .reasons import deepspeed_sentence, gain_of_risk, time_shares
from .recommendation import Recommendation, closest

if TYPE_CHECKING:
    from .evidence import ProbedPlan, ProbeSeries, Verification

_COLUMNS = (
    (phrase("rung"), -19),
    (phrase("batch"), 5),
    (phrase("ckpt"), 4),
    (phrase("GPU GiB"), 7),
    (phrase("RAM GiB"), 7),
    ("NVMe", 5),
    ("tokens/s", 8),
)


_NARROW = 2 + sum(abs(width) + 1 for _, width in _COLUMNS)
"""Columns of a terminal below which each row of the table is a sentence."""


_MOST_CHANGES = 5
"""Changes that are told without `details`."""

_LARGE_SHARE, _SMALL_SHARE = 0.1, 0.01
"""Shares of a step that are named without `details`, and with them."""


def render(answer: Recommendation, console: Console, *, all_candidates: bool = False, details: bool = False) -> None:
    """Print the answer but the files and commands that follow from it.

    details: with the reasons, DeepSpeed's own estimate and what is assumed.
    """
    chosen = answer.recommended
    for line in verdict(answer):
        sentence(console, line)
    blank(console)
    for line in subject(answer):
        sentence(console, line)
    blank(console)
    _table(answer, console, all_candidates=all_candidates)
    shown = chosen or closest(answer.ladder)
    if shown is not None:
        blank(console)
        _memory_bar(shown, device_word(answer.question.cluster), console)
    if chosen is not None or answer.reasons or answer.beside is not None:
        blank(console)
    if chosen is not None:
        shares = time_shares(chosen.time, least=_SMALL_SHARE if details else _LARGE_SHARE)
        step = phrase("Where the {time} of a step go: {shares}.", time=seconds(chosen.time.step_s), shares=shares)
        sentence(console, step)
        of_job = job_parts(answer)
        if of_job:
            blank(console)
            sentence(console, phrase("The whole job"), style="bold")
        for line in of_job or (_utilization(answer.question, chosen) if details else ()):
            sentence(console, line)
    for reason in answer.reasons if details or chosen is None else ():
        sentence(console, reason)
    if answer.beside is not None:
        sentence(console, _beside(answer.beside, chosen))
    for run in answer.verifications:
        blank(console)
        sentence(console, _verification(run))
    if answer.probe_series is not None:
        _series(answer.probe_series, console)
    elif answer.past_probes:
        blank(console)
        sentence(console, phrase("Earlier probes on this machine"), style="bold")
        for probe in answer.past_probes:
            _probe(probe, console)
    if details:
        _deepspeed(answer, shown, console)
    _changes(answer, console, details=details)
    blank(console)
    sentence(console, evidence_sentence(answer), style="dim")
    if answer.question.cluster.measured:
        measured = phrase("Measured {how}.", how=answer.question.cluster.measured)
        sentence(console, measured, style="dim")
    if details and answer.assumptions:
        sentence(console, "Assumed: " + "; ".join(answer.assumptions) + ".", style="dim")


def verdict(answer: Recommendation) -> tuple[str | Text, ...]:
    """The sentences that the answer begins with: does it fit, how fast, and what it needs."""
    chosen, cluster = answer.recommended, answer.question.cluster
    if chosen is None:
        return _nothing_fits(answer)
    return (
        styled(fits_sentence(plan_title(chosen.plan), chosen.fit), "bold green"),
        *largest_found(answer),
        _speed(answer, chosen),
        *_risk(answer),
        *answer.doubts,
        _batch(chosen.plan, cluster),
        _need(answer, chosen),
        *_job(answer, chosen),
    )


def _speed(answer: Recommendation, chosen: Candidate) -> Phrase:
    """How fast it is: the figure, and after it what there is to say of it."""
    cluster, between = answer.question.cluster, chosen.time.tokens_per_s_range
    ranks, length = cluster.world_size, answer.question.model.fixed_len
    said = phrase("{figure} tokens/s", figure=rate(chosen.tokens_per_s))
    if chosen.estimate.evidence != "probe":
        said = phrase("About {speed}", speed=said)
    if between is not None:
        ends = {"low": rough_rate(between[0]), "high": rough_rate(between[1])}
        said = phrase("{speed} ({low} to {high})", speed=said, **ends)
    if ranks > 1:
        each = rate(chosen.tokens_per_s / ranks)
        said = phrase("{speed}, {each} per {device}", speed=said, each=each, device=device_word(cluster))
    if length:  # what counts is the image and not its patches
        said = phrase("{speed}; {samples} samples/s", speed=said, samples=rate(chosen.tokens_per_s / length))
    if cluster.gpu.assumed:
        said = phrase("{speed}, with GPUs as fast as the {gpu}", speed=said, gpu=cluster.gpu.name)
    return phrase("{words}.", words=said)


def _batch(plan: Plan, cluster: Cluster) -> Phrase:
    """The micro batch, how the global one is made of it, and checkpointing."""
    device, steps = device_word(cluster), plan.gradient_accumulation_steps
    said = phrase("Micro batch {size}", size=plan.micro_batch_size)
    if steps > 1:
        said = phrase("{batch} x {steps} accumulation steps", batch=said, steps=steps)
    if plan.sequence_parallel_size > 1:
        ranks = plan.sequence_parallel_size
        said = phrase(
            "{batch}, each sample shared by {ranks} {device}s (Ulysses)", batch=said, ranks=ranks, device=device
        )
    if plan.autotp_size > 1:
        ranks = plan.autotp_size
        said = phrase("{batch}, each layer split by {ranks} {device}s (AutoTP)", batch=said, ranks=ranks, device=device)
    if plan.autoep_size > 1:
        said = phrase(
            "{batch}, experts spread over {ranks} {device}s (AutoEP)", batch=said, ranks=plan.autoep_size, device=device
        )
    return phrase(
        "{batch}, global batch {samples}; {checkpointing}.",
        batch=said,
        samples=plan.samples_per_step(cluster.world_size),
        checkpointing=checkpointing_words(plan),
    )


def _need(answer: Recommendation, chosen: Candidate) -> Phrase:
    """Memory of the GPU and of the host beside what there is, and NVMe."""
    memory, cluster = chosen.memory, answer.question.cluster
    have = cluster.host_memory_bytes_per_node
    said = phrase(
        "It needs {need} of {have} GiB per {device}",
        need=gib(chosen.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_word(cluster),
    )
    host = gib(memory.host_bytes_per_node)
    if have is None:
        said = phrase("{needs} and {need} GiB of host RAM", needs=said, need=host)
    else:
        said = phrase("{needs} and {need} of {have} GiB of host RAM", needs=said, need=host, have=gib(have))
    if memory.nvme_bytes_per_node:
        said = phrase("{needs}, {need} GiB of NVMe", needs=said, need=gib(memory.nvme_bytes_per_node))
    if cluster.nodes > 1:
        said = phrase("{needs} per node", needs=said)
    return phrase("{needs} (--ram checks it).", needs=said) if have is None else phrase("{words}.", words=said)


def _job(answer: Recommendation, chosen: Candidate) -> tuple[str, ...]:
    """How long the whole job takes and what it costs, where it was told."""
    duration = duration_of(answer.question, chosen)
    return () if duration is None else (verdict_sentence(duration, answer.question.price),)


def job_parts(answer: Recommendation) -> tuple[str, ...]:
    """What was counted of the job, what its duration consists of, and how well it uses the GPUs."""
    chosen, question = answer.recommended, answer.question
    duration = None if chosen is None else duration_of(question, chosen)
    if chosen is None or duration is None:
        return ()
    packing_helps = bool(question.job and question.job.lengths) and not question.job_is_packed
    return (
        *question.job_basis,
        *parts_sentences(duration, packing_helps=packing_helps),
        *_utilization(question, chosen),
    )


def _utilization(question: Question, chosen: Candidate) -> tuple[str, ...]:
    """MFU and the speed of one GPU beside the card's peak."""
    model, workload, cluster = question.model, question.workload, question.cluster
    share = model_flops_utilization(model, workload, cluster, chosen.plan, chosen.time)
    peak = peak_flops_per_s(cluster.gpu, workload.precision)
    if share is None or peak is None or cluster.gpu.is_cpu:
        return ()
    return (
        phrase(
            "{speed} tokens/s per {device} at full length use {share} of the {peak} that its data sheet names for "
            "{precision} (MFU).",
            speed=rate(chosen.tokens_per_s / cluster.world_size),
            device=device_word(cluster),
            share=percent(share),
            peak=amount(peak, "flop/s"),
            precision=workload.precision,
        ),
    )


def largest_found(answer: Recommendation) -> tuple[str, ...]:
    """What was found for the option that was "max"."""
    question, chosen = answer.question, answer.recommended
    found = question.largest
    if found is None:
        return ()
    value, beyond = found.value, found.too_large
    if value is None:
        return (_NOT_EVEN[found.option](beyond),)
    unknown = question.cluster.host_memory_bytes_per_node is None and chosen is not None and chosen.plan.offloads
    fits = phrase("fits if the host has the RAM") if unknown else phrase("fits")
    if found.option == "seq_len":
        said = phrase("{value} tokens are the longest sequence that {fits}", value=f"{value:,}", fits=fits)
        if beyond:
            return (phrase("{longest}; {beyond} are too many.", longest=said, beyond=f"{beyond:,}"),)
        return (phrase("{longest}: the model has no more positions.", longest=said),)
    said = (
        phrase("{value} is the largest of its family that {fits}", value=value, fits=fits)
        if found.option == "model_size"
        else phrase("Micro batch {value} is the largest that {fits}", value=value, fits=fits)
    )
    if beyond:
        return (phrase("{largest}; {beyond} does not.", largest=said, beyond=beyond),)
    return (phrase("{words}.", words=said),)


_NOT_EVEN: Mapping[str, Callable[[object], Phrase]] = {
    "model_size": lambda beyond: phrase("No model of the family fits, not even {beyond}.", beyond=beyond),
    "micro_batch": lambda beyond: phrase("Not even a micro batch of {beyond} fits.", beyond=beyond),
    "seq_len": lambda beyond: phrase("Not even a sequence of {beyond} tokens fits.", beyond=beyond),
}


def _risk(answer: Recommendation) -> tuple[Text, ...]:
    """What a plan that is only likely to fit would gain."""
    risky = answer.try_first
    return () if risky is None else (styled(gain_of_risk(answer.question, risky, answer.recommended), "bold yellow"),)


def _nothing_fits(answer: Recommendation) -> tuple[Text, ...]:
    """The verdict with everything that the closest plan lacks, not only what stopped it first."""
    failed = (
        next(
            (
                probe.result.failure
                for probe in answer.probe_series.probes
                if probe.result.failure is not None and probe.result.failure.kind != "out_of_memory"
            ),
            None,
        )
        if answer.probe_series is not None
        else None
    )
    largest = tuple(Text(spoken(line)) for line in largest_found(answer))
    if failed is not None:
        first = phrase(" The first that failed: {message}", message=ended(failed.message))
        return (styled(phrase("No plan ran."), "bold red").append(spoken(first), style="not bold default"),)
    if answer.try_first is not None:
        return (styled(phrase("Nothing is sure to fit."), "bold red"), *largest, *_risk(answer))
    text, missed = styled(phrase("Nothing fits."), "bold red"), closest(answer.ladder)
    if missed is not None:
        text.append(spoken(_closest(missed, answer.question.cluster)), style="not bold default")
    return (text, *largest)


def _closest(missed: Candidate, cluster: Cluster) -> Phrase:
    """What the plan that misses by least would take."""
    memory, have = missed.memory, cluster.host_memory_bytes_per_node
    said = phrase(
        " The closest, {rung}, would take {need} of {have} GiB per {device}",
        rung=missed.rung,
        need=gib(missed.device_bytes),
        have=gib(cluster.gpu.memory_bytes),
        device=device_word(cluster),
    )
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        said = phrase(
            "{needs}, which fits with a probability of {chance}", needs=said, chance=chance(missed.fit.probability)
        )
    if memory.host_bytes_per_node > (have or MOST_HOST_BYTES):
        host = {"need": gib(memory.host_bytes_per_node), "have": gib(have or MOST_HOST_BYTES)}
        said = (
            phrase("{needs} and {need} GiB of RAM per node, where hosts have {have} at most", needs=said, **host)
            if have is None
            else phrase("{needs} and {need} of {have} GiB of RAM per node", needs=said, **host)
        )
    disk, room = memory.nvme_bytes_per_node, cluster.nvme_bytes_per_node
    if disk and not room:
        said = phrase("{needs} and {need} GiB of NVMe per node (--nvme)", needs=said, need=gib(disk))
    elif room is not None and disk > room:
        said = phrase("{needs} and {need} of {have} GiB of NVMe per node", needs=said, need=gib(disk), have=gib(room))
    return phrase("{words}.", words=said)


def subject(answer: Recommendation) -> tuple[Phrase, ...]:
    """What was asked: the model with its training, and the machines."""
    model, training = training_subject(answer.question)
    machines = cluster_title(answer.question.cluster, speed=False)
    return model, phrase("{training} · {machines}", training=training, machines=machines)


def training_subject(question: Question) -> tuple[Phrase, Phrase]:
    """The model, and its training whatever the machines."""
    model, workload = question.model, question.workload
    size = phrase("{count} parameters", count=count(model.parameters))
    if question.trainable_parameters != model.parameters:
        size = phrase("{size}, {count} trained", size=size, count=count(question.trainable_parameters))
    return (
        phrase("{model} · {size} · {method}", model=model.name, size=size, method=method_title(workload)),
        listed(
            [
                phrase(
                    "{precision} · {optimizer} · sequence {length}",
                    precision=workload.precision,
                    optimizer=workload.optimizer,
                    length=_length(model, workload),
                ),
                *_unusual(workload),
            ]
        ),
    )


def _length(model: ModelShape, workload: Workload) -> str:
    """Tokens of a sequence, and what it is to a model with an encoder and a decoder."""
    if not any(block.cross_attention for block in model.blocks):
        return str(workload.seq_len)
    return phrase(
        "{tokens} (tokens of the target, which are counted; the source has {source})",
        tokens=workload.seq_len,
        source=model.encoder_len(workload.seq_len),
    )


def _unusual(workload: Workload) -> list[Phrase]:
    """What is not usual of the documents, the loss, the kernels and the software."""
    said = []
    if workload.document_len is not None:
        said.append(phrase("documents of {tokens}", tokens=workload.document_len))
    if workload.loss != "standard":
        said.append(phrase("{kind} loss", kind=workload.loss))
    if workload.mlp == "tiled":
        said.append(phrase("tiled feed-forward"))
    if workload.kernels != "torch":
        said.append(phrase("{kind} kernels", kind={"liger": "Liger", "unsloth": "unsloth"}[workload.kernels]))
    return said + [named(words) for words in _differences(workload.software)]


def _differences(software: Software) -> tuple[str, ...]:
    """`transformers 4.45`, `reentrant`: what is not as planned for."""
    names = [field.name for field in fields(Software)]
    values = {name: getattr(software, name) for name in names if getattr(software, name) != getattr(DEFAULT, name)}
    said = {name: ".".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    return tuple(
        name.replace("_", " ")
        if value is True
        else f"no {name.replace('_', ' ')}"
        if value is False
        else f"{name} {value}"
        for name, value in said.items()
    )


def _table(answer: Recommendation, console: Console, *, all_candidates: bool) -> None:
    """The ladder, one row a rung: its best plan; with `all_candidates` every plan that was predicted."""
    cluster = answer.question.cluster
    cpu = cluster.gpu.is_cpu
    titles = ["GiB" if cpu and title == "GPU GiB" else spoken(title) for title, _ in _COLUMNS]
    header = " ".join(padded(title, width) for title, (_, width) in zip(titles, _COLUMNS, strict=True))
    if console.width >= _NARROW:
        row(console, "  " + header, style="bold")
    last_reason = ""
    for step in answer.ladder:
        if step.candidate is None:
            reason = step.reason if step.reason != last_reason else phrase("the same")
            sentence(console, f" {step.rung:<19} {spoken(reason)}", style="dim", hang=21)
            last_reason = step.reason
            continue
        last_reason = ""
        for candidate in answer.candidates if all_candidates else (step.candidate,):
            if candidate.rung == step.rung:
                _row(candidate, candidate is answer.recommended, console)
    if answer.beside is not None:
        _row(answer.beside, False, console)
    shown = answer.candidates if all_candidates else [step.candidate for step in answer.ladder if step.candidate]
    length, notes = answer.question.model.fixed_len, []
    if length:
        notes.append(phrase("tokens/s: every sample is {tokens} tokens", tokens=length))
    notes.append(
        phrase(
            "batch: micro batch / {device}s that share it x accumulation; ckpt: checkpointing",
            device=device_word(cluster),
        )
        if any(candidate.plan.ranks_per_sample > 1 for candidate in shown)
        else phrase("batch: micro batch x accumulation steps; ckpt: gradient checkpointing")
    )
    notes.append(
        phrase("GiB: what a rank needs; RAM and NVMe: all ranks")
        if cpu
        else phrase("GPU: device memory that the plan needs; RAM and NVMe: per node")
    )
    if any(candidate.fit.reason.endswith("any RAM") for candidate in shown):
        notes.append(
            phrase(
                "any RAM: {most} GiB, the most that hosts have; --ram says how much there is", most=gib(MOST_HOST_BYTES)
            )
        )
    if any(candidate.fit.reason.endswith("%") for candidate in shown):
        notes.append(phrase("%: the probability that it fits (--risk)"))
    for line in notes:
        sentence(console, f" {spoken(line)}", style="dim")


def _row(candidate: Candidate, chosen: bool, console: Console) -> None:
    values, reason = [spoken(cell) for cell in _cells(candidate)], spoken(candidate.fit.reason)
    style = "bold green" if chosen else "" if candidate.fit.fits else "dim"
    if console.width < _NARROW:
        titles = [spoken(title) for title, _ in _COLUMNS]
        said = [f"{title} {value}" for title, value in zip(titles[1:], values[1:], strict=True) if value != "-"]
        line = f"{'>' if chosen else ' '} {', '.join([values[0], *said])}: {reason}"
        sentence(console, line, style=style, hang=4)
        return
    cells = " ".join(padded(value, width) for value, (_, width) in zip(values, _COLUMNS, strict=True))
    line, reason = f"{'>' if chosen else ' '} {cells}", reason.replace("likely fits", "likely")
    gap = "  " if cell_len(line) + cell_len(reason) + 2 <= WIDTH else " "
    row(console, f"{line}{gap}{reason}", style=style)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    plan, memory = candidate.plan, candidate.memory
    return (
        plan.rung,
        batch_words(plan),
        checkpointing_word(plan),
        gib(candidate.device_bytes),
        gib(memory.host_bytes_per_node),
        gib(memory.nvme_bytes_per_node) if memory.nvme_bytes_per_node else "-",
        rate(candidate.tokens_per_s) if candidate.fit.gpu_likely_suffices else "-",
    )


def _beside(plain: Candidate, chosen: Candidate | None) -> str:
    """What plain PyTorch's row is, and how it compares."""
    said = phrase("{plan} needs {need} GiB per GPU", plan=plan_title(plain.plan), need=gib(plain.device_bytes))
    if plain.fit.fits and chosen is not None:
        share = percent(plain.tokens_per_s / chosen.tokens_per_s)
        said = phrase("{needs} and would run at {share} of the speed", needs=said, share=share)
    return phrase(
        "{needs}. It keeps no fp32 master weights, and is a comparison: no configuration is written for it.", needs=said
    )


def _memory_bar(candidate: Candidate, device: str, console: Console) -> None:
    memory = candidate.memory
    told = {
        "need": gib(memory.device_bytes_per_gpu),
        "device": device,
        "rung": candidate.rung,
        "moment": phase_title(memory.peak.name),
    }
    sentence(
        console,
        phrase("Where the {need} GiB per {device} of {rung} go (peak: {moment})", **told)
        if candidate.measured_bytes is None
        else phrase("Where the predicted {need} GiB per {device} of {rung} go (peak: {moment})", **told),
    )
    bar(memory.components, console)


_ENDED = {
    "settled": phrase("Nothing that was not run could be faster by more than the search resolves."),
    "budget": phrase("The time was over before everything was settled (--budget)."),
    "interrupted": phrase("Interrupted before everything was settled."),
}


def _series(series: ProbeSeries, console: Console) -> None:
    """The probes in their order, each with its outcome and the reason for it."""
    blank(console)
    sentence(
        console,
        phrase(
            "Probes on this machine: {runs} of {plans} plans were run (at most {bound})",
            runs=series.runs,
            plans=series.candidates,
            bound=series.bound,
        ),
        style="bold",
    )
    for probe in series.probes:
        _probe(probe, console)
    sentence(console, _ENDED[series.ended])


def _probe(probe: ProbedPlan, console: Console) -> None:
    plan, failure = probe.candidate.plan, probe.result.failure
    if failure is not None:
        outcome: str = f"{failure.kind.replace('_', ' ')}: {failure.message}"
    elif probe.age_s is None:
        predicted = rate(probe.candidate.tokens_per_s)
        speed = rate(probe.result.tokens_per_s)
        outcome = phrase("{speed} tokens/s (predicted {predicted})", speed=speed, predicted=predicted)
    else:
        outcome = phrase("{figure} tokens/s", figure=rate(probe.result.tokens_per_s))
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    told = phrase("{outcome}; {reason}", outcome=outcome, reason=reason)
    word = padded(spoken(checkpointing_word(plan)), 4)
    sentence(console, f"  {plan.rung:<19} {batch_words(plan):>5} {word}  {spoken(told)}", hang=34)


def evidence_sentence(answer: Recommendation) -> str:
    """How the answer is known, and what would settle it."""
    if answer.probe_series is not None and answer.probe_series.best is None and answer.recommended is not None:
        return phrase("Evidence: analytic; no probe came to its end.")
    if answer.probe_series is not None:
        return phrase(
            "Evidence: probes of the real engine on this machine for the speed and the verdict; other plans are "
            "predicted, and corrected by the probe of the plan most like them."
        )
    if answer.verifications:
        return phrase("Evidence: dry run of the real engine.")
    if answer.past_probes:
        return _earlier_evidence(answer)
    cluster = answer.question.cluster
    if cluster.gpu.is_cpu:
        return phrase("Evidence: analytic. Settle it by a few real runs on this machine: add --probe.")
    return phrase(
        "Evidence: analytic. Prove it without a GPU, by a dry run of the real DeepSpeed engine: add --verify."
    )


def _earlier_evidence(answer: Recommendation) -> str:
    """Of an answer that was not probed now."""
    chosen = answer.recommended
    for probe in answer.past_probes:
        if probe.candidate is chosen and probe.age_s is not None:
            return phrase(
                "Evidence: probe, {age}, for the speed and the verdict; other plans are predicted, and corrected by "
                "the probe of the plan most like them (ds-advise history).",
                age=age(probe.age_s),
            )
    return phrase(
        "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history). Settle it "
        "by a few real runs: add --probe."
    )


def _verification(run: Verification) -> Phrase:
    peak, memory, host = run.dry_run.result.peak, run.candidate.memory, run.dry_run.required_host_bytes_per_node
    versions = run.dry_run.result.versions
    said = phrase(
        "Dry run of {rung} (DeepSpeed {deepspeed}, transformers {transformers}): {verdict}; {allocated} GiB allocated "
        "(predicted: {predicted}), {device} GiB on the device, {host} GiB of host RAM (predicted: {predicted_host})",
        rung=run.candidate.rung,
        deepspeed=versions["deepspeed"],
        transformers=versions["transformers"],
        verdict=run.dry_run.fit.reason,
        allocated=gib(peak.allocated_bytes_per_gpu),
        predicted=gib(memory.allocated_bytes_per_gpu),
        device=gib(run.dry_run.required_device_bytes_per_gpu),
        host=gib(host),
        predicted_host=gib(memory.host_bytes_per_node),
    )
    if run.dry_run.step is not None:
        said = phrase(
            "{run}; a step takes {time} by the schedule that it recorded (predicted: {predicted})",
            run=said,
            time=seconds(run.dry_run.step.time.step_s),
            predicted=seconds(run.candidate.time.step_s),
        )
    return phrase("{words}.", words=said)


def _deepspeed(answer: Recommendation, shown: Candidate | None, console: Console) -> None:
    estimate = answer.deepspeed_estimate
    if estimate is None or shown is None:
        return
    blank(console)
    sentence(console, deepspeed_sentence(estimate, shown.device_bytes))


def _changes(answer: Recommendation, console: Console, *, details: bool) -> None:
    if not answer.changes:
        if answer.recommended is None:
            blank(console)
            sentence(
                console,
                phrase("No change that was tried makes it fit: other methods, a shorter sequence.")
                if answer.question.cluster.gpu.is_cpu
                else phrase(
                    "No change that was tried makes it fit: other methods, a shorter sequence, more or larger GPUs."
                ),
            )
        return
    blank(console)
    title = phrase("What would change the answer") if answer.recommended else phrase("What would make it fit")
    if answer.past_probes or answer.probe_series:
        title = phrase("{title} (predicted, not corrected by probes)", title=title)
    sentence(console, title)
    shown = answer.changes if details else answer.changes[:_MOST_CHANGES]
    width = max(len(change.flags) for change in shown)
    for change in shown:
        sentence(
            console,
            Text.assemble("  ", (f"{change.flags:<{width}}", "bold"), f"  {spoken(change.outcome)}"),
            hang=width + 4,
        )
    if len(shown) < len(answer.changes):
        more = phrase("and {count} more (--details)", count=len(answer.changes) - len(shown))
        sentence(console, f"  {spoken(more)}", style="dim")
