"""From `--data`, `--samples`, `--tokens`, `--epochs` and `--price` to the amount of training; parsers of amounts,
durations and prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...estimators.errors import WorkloadError
from ...estimators.models.model_shape import ModelShape
from ...estimators.rollouts import Rollouts
from ...estimators.time.job import Job, Price
from ..data.counting import EPOCHS, count_data
from .option import parse_count
from .options import JobOptions, QuestionOptions, names_in
from .rollouts import build_rollouts

_UNITS = {
    1: "s sec secs second seconds",
    60: "m min mins minute minutes",
    3600: "h hr hrs hour hours",
    86400: "d day days",
}
"""Seconds -> the names of a unit."""

_SECONDS = {name: duration_s for duration_s, names in _UNITS.items() for name in names.split()}
_MOST = 10**15
_MOST_EPOCHS = 10_000

CURRENCY = r"(?:[$€£¥₹]|[a-z]{3})?"
"""A currency's sign or code, if there is one."""

_PRICE = re.compile(
    rf"(?P<before>{CURRENCY})\s*(?P<figure>\d{{1,7}}(\.\d{{1,6}})?)\s*(?P<after>{CURRENCY})"
    r"(/\s*(?P<unit>gpu|card|node|machine))?\s*(/\s*(h|hr|hour))?"
)


class QuestionJob(NamedTuple):
    """The job of a question, and the settings that follow from its data."""

    job: Job
    seq_len: int | None
    """The sequence length for the data; None without data."""
    basis: tuple[str, ...] = ()
    """Counts and assumptions, as sentences."""


def has_amount(options: Mapping[str, Any]) -> bool:
    """Whether the options give an amount of training."""
    return any(options.get(name) is not None for name in ("data", "samples", "tokens"))


NEED_AMOUNT = ("epochs", "price", "eval_split")
"""Options of the job that need an amount of training."""


def check_job(options: Mapping[str, Any]) -> None:
    """Raise WorkloadError for options of the job that contradict each other or are out of range."""
    job_options = {name: options[name] for name in names_in(JobOptions) if options.get(name) is not None}
    amounts = [f"--{name}" for name in ("data", "samples", "tokens") if name in job_options]
    if len(amounts) > 1:
        both = f"{' and '.join(amounts)} both set the amount of training"
        raise WorkloadError(both, fix="leave all but one out")
    for name in NEED_AMOUNT:
        if job_options.get(name) and not amounts:
            raise WorkloadError(
                f"--{name.replace('_', '-')} needs the amount of training",
                why="duration and cost are computed for a whole job",
                fix="add --data FILE, --samples N or --tokens 1B",
            )
    if job_options.get("packing") and "data" not in job_options:
        raise WorkloadError(
            "--packing needs --data",
            why="the rows per sample are counted from the data",
            fix="add --data FILE, or give the number of packed samples with --samples",
        )
    if "tokens" in job_options and "epochs" in job_options:
        raise WorkloadError("--tokens counts all epochs", fix="leave --epochs out, or give --samples")
    if "tokens" in job_options and job_options.get("eval_split"):
        raise WorkloadError("--eval-split is a fraction of the samples", fix="give --samples instead of --tokens")
    check_epochs(job_options.get("epochs"), job_options.get("eval_split", 0.0))


def check_epochs(epochs: float | None, eval_split: float) -> None:
    """Raise WorkloadError for values out of range."""
    if not 0 <= eval_split < 1:
        fix = "pass a share such as --eval-split 0.05"
        raise WorkloadError(f"--eval-split is {eval_split:g}", why="it is a share below 1", fix=fix)
    if epochs is not None and not 0 < epochs <= _MOST_EPOCHS:
        why, fix = f"it must be above 0 and at most {_MOST_EPOCHS}", "pass a number such as --epochs 3"
        raise WorkloadError(f"--epochs is {epochs:g}", why=why, fix=fix)


def build_job(options: QuestionOptions, model: str, shape: ModelShape, *, seq_len: int | None) -> QuestionJob | None:
    """The job of a question, with its data counted for the model; None if the options give no amount of training.

    seq_len: None for that of the data.

    Raises DsAdviseError for invalid options, and for data that cannot be trained on.
    """
    check_job(options)
    if not has_amount(options):
        return None
    if options["tokens"] is not None:
        return QuestionJob(job=Job(tokens=parse_amount("tokens", options["tokens"])), seq_len=None)
    epochs = EPOCHS if options["epochs"] is None else options["epochs"]
    basis = (f"{EPOCHS:g} epochs are assumed (--epochs).",) if options["epochs"] is None else ()
    if options["samples"] is not None:
        samples = parse_amount("samples", options["samples"])
        held_out = round(samples * options["eval_split"])
        job = Job(samples=max(1, samples - held_out), epochs=epochs, evaluation_samples=held_out)
        return _count_completions(QuestionJob(job=job, seq_len=None, basis=basis), build_rollouts(options))
    assert options["data"] is not None
    counted = count_data(
        Path(options["data"]).expanduser(),
        model,
        shape,
        seq_len=seq_len,
        packing=options["packing"],
        epochs=epochs,
        evaluation_share=options["eval_split"],
    )
    rollouts = build_rollouts(options)
    data_len = counted.samples.seq_len
    if rollouts is not None and seq_len is None:  # the data are prompts
        data_len += rollouts.max_completion_length
    found = QuestionJob(job=counted.job, seq_len=data_len, basis=(counted.sentence, *basis))
    return _count_completions(found, rollouts)


def _count_completions(prompts: QuestionJob, rollouts: Rollouts | None) -> QuestionJob:
    """The job in completions if the samples are prompts. Each completion counts with the maximum length."""
    if rollouts is None or prompts.job.samples is None:
        return prompts
    each = rollouts.num_generations * rollouts.num_iterations
    # The lengths are those of prompts; completions count with their maximum.
    job = replace(prompts.job, samples=each * prompts.job.samples, lengths=())
    basis = f"Each sample is a prompt, which is trained {each} times."
    return prompts._replace(job=job, basis=(*prompts.basis, basis))


def parse_amount(of: str, text: int | str) -> int:
    """The number of samples or tokens, in the forms of `parse_count`. Raises WorkloadError for any other text."""
    try:
        return parse_count(str(text), most=_MOST)
    except ValueError as error:
        raise WorkloadError(
            f"--{of} {str(text)[:40]!r} is not a number of {of}",
            why=f"from 1 to {_MOST // 10**12:,}T are accepted",
            fix=f"write it as --{of} 20000, 500k, 1B",
        ) from error


def parse_duration(option: str, text: str) -> float:
    """Seconds of `24h`, `90m`, `3d` or `1 day`. Raises WorkloadError for any other text."""
    match = re.fullmatch(rf"(\d{{1,6}}(?:\.\d{{1,3}})?)\s*({'|'.join(_SECONDS)})", text.strip().lower(), re.ASCII)
    duration_s = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not duration_s:
        is_number = re.fullmatch(r"0*[1-9]\d{0,5}(?:\.\d{1,3})?", text.strip(), re.ASCII)
        example = f"{text.strip()}h, {text.strip()}m or {text.strip()}d" if is_number else "24h, 90m, 3d"
        why = "it must be above 0" if match else "a number and a unit are needed"
        what = f"{option} {text[:40]!r} is not a duration"
        raise WorkloadError(what, why=why, fix=f"write it as {option} {example}")
    return duration_s


def parse_price(text: str) -> Price:
    """`2.49/h` per GPU, `20USD/node/h` per node. Raises WorkloadError for any other text."""
    match = _PRICE.fullmatch(text.strip().lower())
    figure = float(match["figure"]) if match else 0.0
    if match is None or not 0 < figure <= 10**6:
        raise WorkloadError(
            f"--price {text[:40]!r} is not a price",
            why="an hourly price is needed, per GPU unless /node is given",
            fix="write it as --price 2.49/h or --price 20USD/node/h",
        )
    is_node = match["unit"] in ("node", "machine")
    return Price(per_hour=figure, unit="node" if is_node else "gpu", currency=match["before"] or match["after"])
