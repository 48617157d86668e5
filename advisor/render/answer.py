"""The answer as a document: verdict, next steps, every strategy, memory and time, reasons, changes and evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ...ds_configs.files import CONFIG_NAME
from ...estimators.time.flops import model_flops_utilization, peak_flops_per_s
from ..answer.evidence import deepspeed_sentence, dry_run_sentence, evidence_sentences, probe_blocks
from ..answer.facts import answer_subject
from ..answer.phases import phase_facts
from ..answer.recommendation import Change, Recommendation, try_first_path
from ..answer.start import NO_FSDP_FILE, has_fsdp_file, next_steps, repeats_script, written_config
from ..answer.verdict import Verdict, answer_verdict
from ..document import blocks as doc
from ..document.blocks import Gap, Heading, Sentence
from ..question.question import Question
from ..search.candidate import Candidate, candidate_duration
from ..text.job import parts_sentences
from ..text.labels import device_label, phase_title, plan_title
from ..text.units import amount, gib, percent, rate, seconds
from .configuration import configuration
from .ladder import Shown, ladder_table
from .plans import best_plans, gpu_limit, memory_bar, memory_chart, time_bar

if TYPE_CHECKING:
    from ..answer.advice import Advice

MOST_LINES = 45
"""Largest number of lines of an answer without `details`, on a terminal of at least 80 columns."""

_GIVE_WAY = {
    "some changes": "",
    "time": "",
    "memory": "the bars of memory and time",
    "phases": "a step's phases",
    "ladder": "plans that need more memory",
    "unsure": "plans that may not fit",
    "most changes": "",
    "dry run": "the dry run",
    "changes": "what would change the answer",
    "launchers": "starts by further launchers",
    "close": "notes on plans that are close",
    "others": "plans that are not chosen",
    "table": "the table of plans",
}
"""Parts that are left out, in this order, if the script needs many lines, each as the answer names it; "" for one that
it does not name. The ladder loses the plans that do not fit the GPU, then those that are not sure to fit, then all but
the chosen one, whose figures are above it, and goes at last. The dry run is the command for it; the further launchers
repeat all arguments of the script. The changes, whose title says that there are more, first lose all but
`_FEWER_CHANGES` and those of what is assumed, then all but those, or all but one."""

_FEW_CHANGES, _FEWER_CHANGES = 4, 2
"""Changes that are shown without `details`, besides other values of what the answer assumes: in an answer with room for
them, and in one whose memory would not be shown."""


IS_ANOTHER = "is another configuration (--force replaces it)"
"""What is said of a file that is kept."""


def answer_document(
    answer: Recommendation,
    config_path: str = CONFIG_NAME,
    *,
    details: bool = False,
    all_candidates: bool = False,
    charts: bool = False,
    changes: bool = True,
    is_written: bool = True,
    columns: int = 0,
) -> doc.Document:
    """Return the answer, with at most `MOST_LINES` lines unless `details` or `all_candidates`, in `columns` columns, or
    80 if that is less.

    config_path: the configuration file that commands name, whether written or not. details: include the reasons,
    smaller shares of the step's time, all lines of the script, every launcher's command, DeepSpeed's own estimate and
    the assumptions. all_candidates: show every predicted plan instead of each strategy's best. charts: include the
    charts of a report. changes: try what would change the answer (`change_blocks`), which takes longer than the answer.
    is_written: whether the file exists afterwards with this configuration; otherwise the answer says that it does not,
    and if `kept_config` is another configuration, that the option `-o` writes it to `config_path`.
    """
    verdict = answer_verdict(answer)
    document = doc.Document(
        subject=" · ".join(answer_subject(answer.question)),
        verdict=verdict.headline,
        tone=verdict.tone,
        blocks=[],
        data=partial(_advice, answer, all_candidates=all_candidates),
    )
    whole = document
    for count in range(len(_GIVE_WAY) + 1):
        left_out = [*_GIVE_WAY][:count]
        most = 0 if "most changes" in left_out else _FEWER_CHANGES if "some changes" in left_out else _FEW_CHANGES
        shows_changes = changes and not (answer.taken and "changes" in left_out)
        change_section = [*change_blocks(answer, details=details, most=most)] if shows_changes else []
        head: list[doc.Block] = [*verdict.sentences, doc.Facts(_facts(answer, verdict, left_out))]
        parts = (
            head,
            () if answer.taken else change_section,
            _start(answer, config_path, details=details, left_out=left_out, is_written=is_written),
            _ladder(answer, details=details, all_candidates=all_candidates, left_out=left_out),
            memory_and_time_blocks(answer, charts=charts, left_out=left_out),
            _further_charts(answer) if charts else (),
            _reasons(answer, details=details),
            _runs(answer, details=details),
            change_section if answer.taken else (),
            _evidence(answer, config_path, details=details),
            _left_out(answer, left_out),
        )
        whole = replace(document, blocks=[*chain.from_iterable(parts)])
        if details or all_candidates or _fits_screen(whole, columns):
            break
    return whole


def _facts(answer: Recommendation, verdict: Verdict, left_out: Collection[str]) -> list[doc.Fact]:
    close = answer.close_plans if "close" in left_out else ()
    words = {sentence.removesuffix(".") for sentence in close}
    return [*verdict.figures, *(fact for fact in verdict.facts if fact.words not in words)]


def _advice(answer: Recommendation, *, all_candidates: bool) -> Advice:
    from ..answer.advice import build_advice  # imported here: a terminal does not need it

    return build_advice(answer, all_candidates=all_candidates)


def _fits_screen(document: doc.Document, columns: int) -> bool:
    from ..document.terminal import line_count  # imported here: the page has no terminal library

    return line_count(document, columns) <= MOST_LINES


def _further_charts(answer: Recommendation) -> Iterator[doc.Block]:
    # Imported here: few answers are a report.
    from .answer_charts import chart_blocks, scaling_blocks, source_blocks

    return chain(chart_blocks(answer), scaling_blocks(answer), source_blocks(answer))


def _start(
    answer: Recommendation, config_path: str, *, details: bool, left_out: Collection[str], is_written: bool
) -> Iterator[doc.Block]:
    """Yield the written files and the next steps."""
    has_dry_run, has_launchers = "dry run" not in left_out, "launchers" not in left_out
    steps = next_steps(answer, config_path, details=details, dry_run=has_dry_run, launchers=has_launchers)
    first = next(steps, None)
    if isinstance(first, Sentence):
        kept = answer.kept_config
        plans = {config_path: answer.recommended, str(try_first_path(Path(config_path))): answer.try_first}
        needed = [path for path, plan in plans.items() if plan is not None]
        if needed and not is_written and kept:
            written = f"{kept} is not written: it {IS_ANOTHER}. -o {config_path} writes this one. "
        elif needed and not is_written:
            all_needed = " and ".join(["it", *needed[1:]])
            written = f"{needed[0]} is not written. The commands below need {all_needed}. "
        elif answer.files:
            written = f"Wrote {', '.join(answer.files)}{f'; {kept} {IS_ANOTHER}' if kept else ''}. "
        else:
            written = ""
        yield Heading("Start it", "start", printed=False)
        yield Sentence(written + first.text)
        yield from steps


def _ladder(
    answer: Recommendation, *, details: bool, all_candidates: bool, left_out: Collection[str]
) -> Iterator[doc.Block]:
    if "table" in left_out:
        return
    by_part: dict[str, Shown] = {"others": "taken", "unsure": "fits", "ladder": "fits the GPU"}
    shown: Shown = next((shown for part, shown in by_part.items() if part in left_out), "all")
    yield Heading("Every strategy", "ladder", printed=False)
    yield ladder_table(answer, all_candidates=all_candidates, shown=shown, details=details)


def _left_out(answer: Recommendation, parts: Collection[str]) -> Iterator[doc.Block]:
    """Yield a sentence that names the parts that gave way."""
    absent = set() if answer.taken is not None else {"time", "phases", "changes"}
    absent |= set() if answer.recommended is not None else {"dry run"}
    absent |= set() if answer.question.workload.rollouts else {"phases"}
    absent |= {"dry run"} if answer.question.cluster.gpu.is_cpu or answer.script else set()
    absent |= set() if any(repeats_script(answer, file) for file in answer.job_files) else {"launchers"}
    absent |= {"ladder"} if "unsure" in parts else set()  # the other name covers both
    absent |= {"unsure"} if "others" in parts else set()
    absent |= {"others"} if "table" in parts else set()
    absent |= set() if answer.close_plans else {"close"}
    names = [_GIVE_WAY[part] for part in parts if _GIVE_WAY[part] and part not in absent]
    if names:
        yield Sentence(f"Left out: {', '.join(names)} (--details).", "dim")


def memory_and_time_blocks(
    answer: Recommendation, *, charts: bool, left_out: Collection[str] = ()
) -> Iterator[doc.Block]:
    """Yield what the plan's memory and time consist of; charts: the memory of every plan."""
    shown, chosen, cluster = answer.shown, answer.taken, answer.question.cluster
    if shown is not None and "memory" not in left_out:
        title, device = "Memory" if shown.measured_bytes is None else "Predicted memory", device_label(cluster)
        need, moment = gib(shown.memory.device_bytes_per_gpu), phase_title(shown.memory.peak.name)
        memory: list[doc.Block] = [Sentence(f"{title} of {shown.strategy}: {need} GiB per {device} (peak: {moment})")]
        bar = memory_bar(shown.memory.components, gpu_limit(cluster))
        chart = doc.Chart(bar, printed=bar)
        if charts:
            caption = (
                f"The best plan of every strategy. The dashed line is the memory of the {device}; longer bars are cut."
            )
            guide = (
                'The table below has the figures; "Where the figures come from" has their formulas and sources. '
                "With a mouse, pointing at a part shows them too."
            )
            chart = memory_chart(best_plans(answer), cluster, chosen=shown)
            chart = chart._replace(printed=bar, caption=caption, guide=guide)
        memory.append(chart)
        times: list[doc.Block] = []
        if chosen is not None and "time" not in left_out and not charts:  # a report has a chart of every plan's time
            bar = time_bar(chosen.time)
            times = [Sentence(f"Step time, {seconds(chosen.time.step_s)}"), doc.Chart(bar, printed=bar)]
        yield Heading("Memory and time" if times else "Memory", "memory", printed=False)
        yield doc.Beside(memory, times)
    phases = [] if chosen is None or "phases" in left_out else [*phase_facts(answer.question, chosen)]
    if phases:
        yield doc.Facts(phases)


def _reasons(answer: Recommendation, *, details: bool) -> Iterator[doc.Block]:
    """Yield the whole job, and the reasons for the plan or against all plans."""
    question, chosen = answer.question, answer.taken
    duration = None if chosen is None or not details else candidate_duration(question, chosen)
    if duration is not None:
        yield Heading("The whole job", "job")
        yield from map(Sentence, question.job_basis)
        packing_helps = bool(question.job and question.job.lengths) and not question.job_is_packed
        yield from map(Sentence, parts_sentences(duration, packing_helps=packing_helps))
    sentences = [
        utilization_sentence(answer.question, answer.taken) if details and answer.taken is not None else "",
        *(answer.reasons if details or answer.recommended is None else ()),
        _baseline(answer),
    ]
    if any(sentences):
        yield Heading("Reasons", "reasons", printed=False, gap=duration is None)
        yield from map(Sentence, filter(None, sentences))


def utilization_sentence(question: Question, chosen: Candidate) -> str:
    """Return the model FLOPs utilization (MFU) of a plan; "" if no peak is published."""
    model, workload, cluster = question.model, question.workload, question.cluster
    peak = peak_flops_per_s(cluster.gpu, workload.matmul_precision)
    if peak is None or cluster.gpu.is_cpu:
        return ""
    share = model_flops_utilization(model, workload, cluster, chosen.plan, chosen.time)
    if share is None:
        return ""
    return (
        f"{rate(chosen.tokens_per_s / cluster.world_size)} tokens/s per {device_label(cluster)} at full length are "
        f"{percent(share)} of the data sheet's {amount(peak, 'flop/s')} for {workload.matmul_precision} (MFU)."
    )


def _baseline(answer: Recommendation) -> str:
    """Return what plain PyTorch needs; "" without a baseline."""
    plain, chosen = answer.pytorch_baseline, answer.recommended
    if plain is None or plain is answer.taken:  # the answer is about it
        return ""
    text = f"{plan_title(plain.plan)} needs {gib(plain.device_bytes)} GiB per GPU"
    if plain.fit.fits:
        share = "" if chosen is None else percent(plain.tokens_per_s / chosen.tokens_per_s)
        text = f"{text} and would run at {share} of the speed" if share else f"{text} and fits"
    if not has_fsdp_file(answer.question, plain):
        return f"{text}. {NO_FSDP_FILE}"
    return f"{text}. --emit accelerate writes its configuration, too." if plain.fit.fits else f"{text}."


def _runs(answer: Recommendation, *, details: bool) -> Iterator[doc.Block]:
    """Yield dry runs, probes, and DeepSpeed's own estimate."""
    for run in answer.verifications:
        yield Gap()
        yield Sentence(dry_run_sentence(run))
    yield from probe_blocks(answer)
    estimate = answer.deepspeed_estimate if details and answer.shows_deepspeed_estimate else None
    if estimate is not None and answer.shown is not None:
        yield Gap()
        yield Sentence(deepspeed_sentence(estimate, answer.shown.device_bytes))


def change_blocks(answer: Recommendation, *, details: bool, most: int = _FEW_CHANGES) -> Iterator[doc.Block]:
    """Yield the changes of the question that would change the answer, or that there are none. most: the number of
    changes without `details`, besides other values of what the answer assumes."""
    shown, others = list[Change](), 0
    for change in answer.changes:
        others += not change.assumed
        if details or others <= most or not shown:
            shown.append(change)
        if not details and others >= max(1, most):
            break
    if not shown and answer.taken is None:
        yield Gap()
        yield Sentence(
            "Other methods and a shorter sequence do not make it fit."
            if answer.question.cluster.gpu.is_cpu
            else "Other methods, a shorter sequence, and more or larger GPUs do not make it fit."
        )
    if not shown:
        return
    title = "What would change the answer" if answer.recommended else "What would make it fit"
    if answer.recommended is None and answer.taken is not None:
        title = "What would make DeepSpeed fit"
    if answer.probe_series or answer.past_probes:
        title = f"{title} (predicted, not corrected by probes)"
    if not answer.changes.are_all_tried or len(shown) < len([*answer.changes]):
        title = f"{title} (--details tries more)"
    yield Heading(title, "changes")
    rows = [doc.Row([doc.Snippet(f"  {change.flags}"), change.outcome]) for change in shown]
    yield doc.Table(["", ""], rows)


def _evidence(answer: Recommendation, config_path: str, *, details: bool) -> Iterator[doc.Block]:
    if details and answer.recommended is not None:
        config = written_config(answer, answer.recommended)
        yield Heading("The configuration", "configuration", printed=False, gap=False)
        yield from configuration(config, config_path)
    yield Heading("Evidence", "evidence", printed=False)
    for sentence in evidence_sentences(answer):
        yield Sentence(sentence, "dim")
    if details and answer.assumptions:
        yield Sentence(f"Assumed: {'; '.join(answer.assumptions)}.", "dim")
