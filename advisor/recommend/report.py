"""The answer for people: the verdict first, then the ladder, the memory, the reasons, the next command. 80 columns."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console
from rich.text import Text

from ...estimators.hardware.cluster import Cluster
from ...estimators.job.utilization import model_flops_utilization, peak_flops_per_s
from ...estimators.models.model_shape import ModelShape
from ...estimators.software import DEFAULT, Software
from ...estimators.workload import Workload
from ..job.words import parts_sentences, verdict_sentence
from ..question.question import Question
from ..terminal.bar import bar
from ..terminal.lines import WIDTH, blank, ended, row, sentence
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
from .evidence import ProbedPlan, ProbeSeries, Verification
from .fit import chance, fits_words
from .reasons import deepspeed_sentence, gain_of_risk, time_shares
from .recommendation import Recommendation, closest

_COLUMNS = (("rung", -19), ("batch", 5), ("ckpt", 4), ("GPU GiB", 7), ("RAM GiB", 7), ("NVMe", 5), ("tokens/s", 8))


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
    blank(console)
    if chosen is not None:
        shares = time_shares(chosen.time, least=_SMALL_SHARE if details else _LARGE_SHARE)
        sentence(console, f"Where the {seconds(chosen.time.step_s)} of a step go: {shares}.")
        of_job = job_parts(answer)
        if of_job:
            blank(console)
            sentence(console, "The whole job", style="bold")
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
        sentence(console, "Earlier probes on this machine", style="bold")
        for probe in answer.past_probes:
            _probe(probe, console)
    if details:
        _deepspeed(answer, shown, console)
    _changes(answer, console, details=details)
    blank(console)
    sentence(console, evidence_sentence(answer), style="dim")
    if answer.question.cluster.measured:
        sentence(console, f"Measured {answer.question.cluster.measured}.", style="dim")
    if details and answer.assumptions:
        sentence(console, "Assumed: " + "; ".join(answer.assumptions) + ".", style="dim")


def verdict(answer: Recommendation) -> tuple[str | Text, ...]:
    """The sentences that the answer begins with: does it fit, how fast, and what it needs."""
    chosen, cluster = answer.recommended, answer.question.cluster
    if chosen is None:
        return _nothing_fits(answer)
    plan = chosen.plan
    steps, ranks = plan.gradient_accumulation_steps, cluster.world_size
    samples = plan.samples_per_step(ranks)
    shared = plan.sequence_parallel_size
    device = device_word(cluster)
    each = f", {rate(chosen.tokens_per_s / ranks)} per {device}" if ranks > 1 else ""
    about = "" if chosen.estimate.evidence == "probe" else "About "
    return (
        Text(f"{plan_title(plan)} {fits_words(chosen.fit)}.", style="bold green"),
        *largest_found(answer),
        f"{about}{rate(chosen.tokens_per_s)} tokens/s{_between(chosen)}{each}{_samples(answer, chosen)}"
        f"{_taken_for(cluster)}.",
        *_risk(answer),
        *answer.doubts,
        f"Micro batch {plan.micro_batch_size}"
        + (f" x {steps} accumulation steps" if steps > 1 else "")
        + (f", each sample shared by {shared} {device}s (Ulysses)" if shared > 1 else "")
        + (f", each layer split by {plan.autotp_size} {device}s (AutoTP)" if plan.autotp_size > 1 else "")
        + (f", experts spread over {plan.autoep_size} {device}s (AutoEP)" if plan.autoep_size > 1 else "")
        + f", global batch {samples}; "
        f"{checkpointing_words(plan)}.",
        f"It needs {gib(chosen.device_bytes)} of {gib(cluster.gpu.memory_bytes)} GiB per {device} and "
        f"{_host_need(answer, chosen)}",
        *_job(answer, chosen),
    )


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
    device, speed = device_word(cluster), rate(chosen.tokens_per_s / cluster.world_size)
    return (
        f"{speed} tokens/s per {device} at full length use {percent(share)} of the {amount(peak, 'flop/s')} that its "
        f"data sheet names for {workload.precision} (MFU).",
    )


def largest_found(answer: Recommendation) -> tuple[str, ...]:
    """What was found for the option that was "max"."""
    question, chosen = answer.question, answer.recommended
    found = question.largest
    if found is None:
        return ()
    value, beyond = found.value, found.too_large
    if value is None:
        return (
            {
                "model_size": f"No model of the family fits, not even {beyond}.",
                "micro_batch": f"Not even a micro batch of {beyond} fits.",
                "seq_len": f"Not even a sequence of {beyond} tokens fits.",
            }[found.option],
        )
    unknown = question.cluster.host_memory_bytes_per_node is None and chosen is not None and chosen.plan.offloads
    fits = "fits if the host has the RAM" if unknown else "fits"
    if found.option == "seq_len":
        text = f"{value:,} tokens are the longest sequence that {fits}"
        return (f"{text}; {beyond:,} are too many." if beyond else f"{text}: the model has no more positions.",)
    what = (
        f"{value} is the largest of its family"
        if found.option == "model_size"
        else f"Micro batch {value} is the largest"
    )
    return (f"{what} that {fits}" + (f"; {beyond} does not." if beyond else "."),)


def _taken_for(cluster: Cluster) -> str:
    """Whose speed is taken, where the GPU itself was not named."""
    return f", with GPUs as fast as the {cluster.gpu.name}" if cluster.gpu.assumed else ""


def _samples(answer: Recommendation, chosen: Candidate) -> str:
    """The speed in samples, where what counts is the image and not its patches."""
    length = answer.question.model.fixed_len
    return f"; {rate(chosen.tokens_per_s / length)} samples/s" if length else ""


def _risk(answer: Recommendation) -> tuple[Text, ...]:
    """What a plan that is only likely to fit would gain."""
    risky = answer.try_first
    return () if risky is None else (Text(gain_of_risk(answer.question, risky, answer.recommended), "bold yellow"),)


def _between(candidate: Candidate) -> str:
    """The interval of a speed, in brackets."""
    between = candidate.time.tokens_per_s_range
    return "" if between is None else f" ({rough_rate(between[0])} to {rough_rate(between[1])})"


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
    largest = tuple(Text(line) for line in largest_found(answer))
    if failed is not None:
        return (Text.assemble(("No plan ran.", "bold red"), f" The first that failed: {ended(failed.message)}"),)
    if answer.try_first is not None:
        return (Text("Nothing is sure to fit.", style="bold red"), *largest, *_risk(answer))
    text, missed, cluster = Text("Nothing fits.", style="bold red"), closest(answer.ladder), answer.question.cluster
    if missed is None:
        return (text, *largest)
    memory, have = missed.memory, cluster.host_memory_bytes_per_node
    needs = f"{gib(missed.device_bytes)} of {gib(cluster.gpu.memory_bytes)} GiB per {device_word(cluster)}"
    if missed.fit.limit == "gpu" and missed.device_bytes <= cluster.gpu.memory_bytes:
        needs += f", which fits with a probability of {chance(missed.fit.probability)}"
    if have is not None and memory.host_bytes_per_node > have:
        needs += f" and {gib(memory.host_bytes_per_node)} of {gib(have)} GiB of RAM per node"
    text.append(f" The closest, {missed.rung}, would take {needs}.", style="not bold default")
    return (text, *largest)


def _host_need(answer: Recommendation, chosen: Candidate) -> str:
    memory, cluster = chosen.memory, answer.question.cluster
    have = cluster.host_memory_bytes_per_node
    per_node = " per node" if cluster.nodes > 1 else ""
    disk = f", {gib(memory.nvme_bytes_per_node)} GiB of NVMe" if memory.nvme_bytes_per_node else ""
    if have is not None:
        return f"{gib(memory.host_bytes_per_node)} of {gib(have)} GiB of host RAM{disk}{per_node}."
    return f"{gib(memory.host_bytes_per_node)} GiB of host RAM{disk}{per_node} (--ram checks it)."


def subject(answer: Recommendation) -> tuple[str, ...]:
    """What was asked: the model with its training, and the machines."""
    model, training = training_subject(answer.question)
    return model, f"{training} · {cluster_title(answer.question.cluster, speed=False)}"


def training_subject(question: Question) -> tuple[str, str]:
    """The model, and its training whatever the machines."""
    model, workload = question.model, question.workload
    trained = question.trainable_parameters
    size = f"{count(model.parameters)} parameters"
    if trained != model.parameters:
        size += f", {count(trained)} trained"
    return (
        f"{model.name} · {size} · {method_title(workload)}",
        f"{workload.precision} · {workload.optimizer} · sequence {workload.seq_len}{_streams(question.model, workload)}"
        f"{_kernels(workload)}",
    )


def _streams(model: ModelShape, workload: Workload) -> str:
    """What a sequence is to a model with an encoder and a decoder."""
    if not any(block.cross_attention for block in model.blocks):
        return ""
    source = model.encoder_len(workload.seq_len)
    return f" (tokens of the target, which are counted; the source has {source})"


def _kernels(workload: Workload) -> str:
    """What is not usual of the documents, the loss and the kernels, each after a comma."""
    words = (
        f"documents of {workload.document_len}" * (workload.document_len is not None),
        f"{workload.loss} loss" * (workload.loss != "standard"),
        "tiled feed-forward" * (workload.mlp == "tiled"),
        {"liger": "Liger kernels", "unsloth": "unsloth kernels", "torch": ""}[workload.kernels],
        *_differences(workload.software),
    )
    return "".join(f", {word}" for word in words if word)


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
    cpu = answer.question.cluster.gpu.is_cpu
    header = " ".join(f"{title:<{-width}}" if width < 0 else f"{title:>{width}}" for title, width in _COLUMNS)
    header = header.replace("GPU GiB", "    GiB") if cpu else header
    if console.width >= _NARROW:
        row(console, "  " + header, style="bold")
    last_reason = ""
    for step in answer.ladder:
        if step.candidate is None:
            reason = step.reason if step.reason != last_reason else "the same"
            sentence(console, f" {step.rung:<19} {reason}", style="dim", hang=21)
            last_reason = step.reason
            continue
        last_reason = ""
        for candidate in answer.candidates if all_candidates else (step.candidate,):
            if candidate.rung == step.rung:
                _row(candidate, candidate is answer.recommended, console)
    if answer.beside is not None:
        _row(answer.beside, False, console)
    shown = answer.candidates if all_candidates else [step.candidate for step in answer.ladder if step.candidate]
    unsure = any(candidate.fit.reason.endswith("%") for candidate in shown)
    length = answer.question.model.fixed_len
    for line in (
        f"tokens/s: every sample is {length} tokens" if length else "",
        "batch: micro batch x accumulation steps; ckpt: gradient checkpointing",
        "GiB: what a rank needs; RAM and NVMe: all ranks"
        if cpu
        else "GPU: device memory that the plan needs; RAM and NVMe: per node",
        "%: the probability that it fits (--risk)" * unsure,
    ):
        if line:
            sentence(console, f" {line}", style="dim")


def _row(candidate: Candidate, chosen: bool, console: Console) -> None:
    cells = [
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, width) in zip(_cells(candidate), _COLUMNS, strict=True)
    ]
    style = "bold green" if chosen else "" if candidate.fit.fits else "dim"
    if console.width < _NARROW:
        titles, values = [title for title, _ in _COLUMNS], _cells(candidate)
        named = [f"{title} {value}" for title, value in zip(titles[1:], values[1:], strict=True) if value != "-"]
        line = f"{'>' if chosen else ' '} {', '.join([values[0], *named])}: {candidate.fit.reason}"
        sentence(console, line, style=style, hang=4)
        return
    line, reason = f"{'>' if chosen else ' '} {' '.join(cells)}", candidate.fit.reason.replace("likely fits", "likely")
    row(console, f"{line}{'  ' if len(line) + len(reason) + 2 <= WIDTH else ' '}{reason}", style=style)


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
    does = f"needs {gib(plain.device_bytes)} GiB per GPU"
    if plain.fit.fits and chosen is not None:
        does += f" and would run at {percent(plain.tokens_per_s / chosen.tokens_per_s)} of the speed"
    return (
        f"{plan_title(plain.plan)} {does}. It keeps no fp32 master weights, and is a comparison: no configuration is "
        "written for it."
    )


def _memory_bar(candidate: Candidate, device: str, console: Console) -> None:
    memory = candidate.memory
    predicted = "" if candidate.measured_bytes is None else "predicted "
    sentence(
        console,
        f"Where the {predicted}{gib(memory.device_bytes_per_gpu)} GiB per {device} of {candidate.rung} go "
        f"(peak: {phase_title(memory.peak.name)})",
    )
    bar(memory.components, console)


_ENDED = {
    "settled": "Nothing that was not run could be faster by more than the search resolves.",
    "budget": "The time was over before everything was settled (--budget).",
    "interrupted": "Interrupted before everything was settled.",
}


def _series(series: ProbeSeries, console: Console) -> None:
    """The probes in their order, each with its outcome and the reason for it."""
    blank(console)
    sentence(
        console,
        f"Probes on this machine: {series.runs} of {series.candidates} plans were run (at most {series.bound})",
        style="bold",
    )
    for probe in series.probes:
        _probe(probe, console)
    sentence(console, _ENDED[series.ended])


def _probe(probe: ProbedPlan, console: Console) -> None:
    plan, failure = probe.candidate.plan, probe.result.failure
    predicted = f" (predicted {rate(probe.candidate.tokens_per_s)})" if probe.age_s is None else ""
    outcome = (
        f"{rate(probe.result.tokens_per_s)} tokens/s{predicted}"
        if failure is None
        else f"{failure.kind.replace('_', ' ')}: {failure.message}"
    )
    reason = probe.reason if probe.age_s is None else age(probe.age_s)
    sentence(
        console,
        f"  {plan.rung:<19} {batch_words(plan):>5} {checkpointing_word(plan):>4}  {outcome}; {reason}",
        hang=34,
    )


def evidence_sentence(answer: Recommendation) -> str:
    """How the answer is known, and what would settle it."""
    if answer.probe_series is not None and answer.probe_series.best is None and answer.recommended is not None:
        return "Evidence: analytic; no probe came to its end."
    if answer.probe_series is not None:
        return (
            "Evidence: probes of the real engine on this machine for the speed and the verdict; other plans are "
            "predicted, and corrected by the probe of the plan most like them."
        )
    if answer.verifications:
        return "Evidence: dry run of the real engine."
    if answer.past_probes:
        return _earlier_evidence(answer)
    cluster = answer.question.cluster
    proof = (
        "Settle it by a few real runs on this machine: add --probe."
        if cluster.gpu.is_cpu
        else "Prove it without a GPU, by a dry run of the real DeepSpeed engine: add --verify."
    )
    return f"Evidence: analytic. {proof}"


def _earlier_evidence(answer: Recommendation) -> str:
    """Of an answer that was not probed now."""
    chosen = answer.recommended
    for probe in answer.past_probes:
        if probe.candidate is chosen and probe.age_s is not None:
            return (
                f"Evidence: probe, {age(probe.age_s)}, for the speed and the verdict; other plans are predicted, and "
                "corrected by the probe of the plan most like them (ds-advise history)."
            )
    return (
        "Evidence: analytic, corrected by earlier probes of other plans on this machine (ds-advise history). Settle it "
        "by a few real runs: add --probe."
    )


def _verification(run: Verification) -> str:
    peak, memory, host = run.dry_run.result.peak, run.candidate.memory, run.dry_run.required_host_bytes_per_node
    versions = run.dry_run.result.versions
    return (
        f"Dry run of {run.candidate.rung} (DeepSpeed {versions['deepspeed']}, transformers "
        f"{versions['transformers']}): {run.dry_run.fit.reason}; "
        f"{gib(peak.allocated_bytes_per_gpu)} GiB allocated (predicted: {gib(memory.allocated_bytes_per_gpu)}), "
        f"{gib(run.dry_run.required_device_bytes_per_gpu)} GiB on the device, {gib(host)} GiB of "
        f"host RAM (predicted: {gib(memory.host_bytes_per_node)}){_recorded_time(run)}."
    )


def _recorded_time(run: Verification) -> str:
    step = run.dry_run.step
    if step is None:
        return ""
    return (
        f"; a step takes {seconds(step.time.step_s)} by the schedule that it recorded "
        f"(predicted: {seconds(run.candidate.time.step_s)})"
    )


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
                "No change that was tried makes it fit: other methods, a shorter sequence"
                f"{'' if answer.question.cluster.gpu.is_cpu else ', more or larger GPUs'}.",
            )
        return
    blank(console)
    title = "What would change the answer" if answer.recommended else "What would make it fit"
    sentence(console, title + " (predicted, not corrected by probes)" * bool(answer.past_probes or answer.probe_series))
    shown = answer.changes if details else answer.changes[:_MOST_CHANGES]
    width = max(len(change.flags) for change in shown)
    for change in shown:
        sentence(
            console,
            Text.assemble("  ", (f"{change.flags:<{width}}", "bold"), f"  {change.outcome}"),
            hang=width + 4,
        )
    if len(shown) < len(answer.changes):
        sentence(console, f"  and {len(answer.changes) - len(shown)} more (--details)", style="dim")
