"""The sentences that the answer begins with: does it fit, how fast, what it needs, and of a whole job how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.text import Text

from ...estimators.hardware.cluster import Cluster
from ...estimators.phrase import Phrase, phrase
from ...estimators.plan import Plan
from ...estimators.time.utilization import model_flops_utilization, peak_flops_per_s
from ..answer.reasons import gain_of_risk
from ..answer.recommendation import Recommendation, closest
from ..question.question import Question
from ..search.candidate import MOST_HOST_BYTES, Candidate, chance, duration_of, fits_sentence
from ..text.job import parts_sentences, verdict_sentence
from ..text.labels import checkpointing_words, device_word, plan_title
from ..text.language import spoken
from ..text.lines import ended, styled
from ..text.units import amount, gib, percent, rate, rough_rate


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
        *utilization(question, chosen),
    )


def utilization(question: Question, chosen: Candidate) -> tuple[str, ...]:
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
