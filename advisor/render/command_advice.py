"""The advice for a script: what it trains today, the best plan, and exactly what to change."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ...ds_configs.files import CONFIG_NAME, check_write, differs, write_text
from ...ds_configs.launch_commands import shell_line
from ...ds_configs.read import precision_in
from ...estimators.errors import DsAdviseError
from ...estimators.plan import Plan
from ...probes.command.words import option_name
from ..answer.command_answer import CommandAnswer
from ..answer.facts import answer_subject, further_facts
from ..answer.start import start_settings
from ..answer.verdict import Verdict, answer_verdict, fit_tone
from ..command.advice import RAN_OTHERWISE, RUN_FAILED, SCRIPT_FAILED, CommandAdvice
from ..command.changes import ChangedCommand, ChangedLine
from ..document import blocks as doc
from ..question.cluster import gpus_argument
from ..search.candidate import IF_RAM_ALLOWS, Fit, fits_sentence, plan_words, ram_condition
from ..search.choice import LEAST_GAIN, SAME_SPEED
from ..text.labels import plan_title
from ..text.output import Output
from ..text.units import gib, listed, rate, seconds, shown_paths, times, whole_gib
from .answer import IS_ANOTHER, MOST_LINES, change_blocks
from .command import precision_sentence
from .ladder import Shown, ladder_table
from .runs import START, next_command

if TYPE_CHECKING:
    from rich.console import Console


_CHANGES = 2
"""Changes of the question that are shown without `details`."""

_NUMBERED = re.compile(rf"{Path(CONFIG_NAME).stem}-\d+\.json")


def command_advice_document(answer: CommandAdvice, *, details: bool = False) -> doc.Document:
    """Return the advice, with at most `MOST_LINES` lines unless `details`: the plans that do not fit are left out
    first, then the last command is shortened, which repeats that of the changes, then the table of plans is left out.
    What would change the answer is shown if nothing fits, and with `details`."""
    from ..document.terminal import line_count  # imported here: the page has no terminal library

    verdict = advice_verdict(answer)
    # A note on plans that are close has the predicted speed of each, and today's row that of its dry run.
    names = set() if answer.today_row is None else {answer.today_row.strategy}
    shown = [
        fact
        for fact in verdict.facts
        if fact.title != "note" or not (answer.is_needless or names & {*fact.words.replace(",", "").split()})
    ]
    asks = not answer.is_needless and not answer.is_unproved and (details or answer.recommended is None)
    for left_out in accumulate(((), ("not fitting",), ("next",), ("plans",), ("facts",))):
        facts: list[doc.Block] = [] if "facts" in left_out else [doc.Gap(), doc.Facts(shown)]
        document = doc.Document(
            subject=" · ".join(answer_subject(answer.question)),
            verdict=_kept(answer) if answer.is_needless else _headline(answer, verdict),
            tone=fit_tone(answer.today.fit) if answer.is_needless else verdict.tone,
            blocks=[
                *verdict.sentences,
                *gain(answer),
                *today_and_advised(answer),
                *precision_sentence(answer.today),
                *facts,
                *changes_to_make(answer),
                *_plans(answer, left_out, details=details),
                *(change_blocks(answer, details=details, most=_CHANGES) if asks else ()),
                *_evidence(answer),
                *_next(answer, is_short="next" in left_out and any(changes_to_make(answer))),
            ],
            data=answer.to_json,
        )
        if details or line_count(document) <= MOST_LINES:
            break
    return document


def advice_verdict(answer: CommandAdvice) -> Verdict:
    """Return the verdict on the advised plan; without one, what the plans lack."""
    return _unproved(answer) if answer.is_unproved else answer_verdict(answer.kept if answer.is_needless else answer)


def today_and_advised(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield today's training beside the advised one, both by their dry runs."""
    for remark in answer.remarks:
        yield doc.Sentence(remark, "yellow")
    sides = {answer.today_title: _facts(answer.today, answer.today_plan)}
    if answer.proof is not None and answer.proof.answer is not None and not answer.is_needless:
        sides["advised"] = _facts(answer.proof.answer, answer.proof.candidate.plan)
    yield doc.Heading("Today and advised", "today", printed=False)
    rows = [doc.Row([name, *(side[name] for side in sides.values())]) for name in sides[answer.today_title]]
    yield doc.Table(["", *sides], rows)


def gain(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield how much faster the advised plan is; of a plan to keep, the gain that another would bring."""
    best, change = answer.recommended, answer.today.free_change
    if not answer.is_needless:
        if answer.speedup is not None:
            yield doc.Sentence(f"The advised plan is {times(answer.speedup)} as fast as today's.", "good")
        return
    if best is not None and answer.speedup is not None and answer.speedup > 1 + SAME_SPEED:
        least = times(1 + LEAST_GAIN)
        gained = times(math.floor(100 * answer.speedup) / 100)  # a rounded one could be the least gain
        yield doc.Sentence(f"{plan_title(best.plan)} is {gained} as fast; a change is advised from {least}.")
    if change is not None:
        saved = gib(change.saved_bytes)
        yield doc.Sentence(f"{change.what} takes {saved} GiB off the peak.")


def _headline(answer: CommandAdvice, verdict: Verdict) -> str:
    """Return the verdict's headline, with the micro batch if the strategy is today's with another one."""
    chosen, today = answer.recommended, answer.today_plan
    if chosen is None or today is None or chosen.strategy != today.strategy:
        return verdict.headline
    micro = chosen.plan.micro_batch_size
    title = plan_title(chosen.plan) + (f" at micro batch {micro}" if micro != today.micro_batch_size else "")
    return fits_sentence(title, chosen.fit)


def _kept(answer: CommandAdvice) -> str:
    today, plan = answer.today, answer.today_plan
    need, have = gib(today.required_device_bytes_per_gpu), gib(today.run.cluster.gpu.memory_bytes)
    speed = "" if today.step is None else f"{rate(today.step.time.tokens_per_s)} {today.unit}/s, "
    name = "" if plan is None else f", {plan_title(plan)}"
    condition = ram_condition(today.fit)
    return f"Keep today's plan{name}{',' * bool(name and condition)}{condition}: {speed}{need} of {have} GiB per GPU."


def _unproved(answer: CommandAdvice) -> Verdict:
    """Return the verdict if no dry run of the changed command proves a plan: what they lack, by strategy."""
    words = {
        SCRIPT_FAILED: "The script fails under {}.",
        RUN_FAILED: "The dry run fails under {}.",
        RAN_OTHERWISE: "The command does not run as advised under {}.",
    }
    tried: dict[str, list[str]] = {}
    for proof in answer.proofs:
        sentence = words.get(proof.candidate.fit.reason, "The dry run does not fit under {}.")
        tried.setdefault(sentence, []).append(proof.candidate.strategy)
    headline = "No plan could be proved."
    return Verdict(
        tone="bad",
        headline=headline,
        short=headline.removesuffix("."),
        sentences=tuple(doc.Sentence(sentence.format(listed(names))) for sentence, names in tried.items()),
        facts=[*further_facts(answer)],
    )


def _facts(answer: CommandAnswer, plan: Plan | None) -> dict[str, str]:
    """Return the training's facts. plan: its plan; None if the closed form does not describe it."""
    engine, observed, step = answer.engine, answer.observed, answer.step
    total = engine.micro_batch_size * engine.gradient_accumulation_steps * engine.data_parallel_size
    cluster = answer.run.cluster
    host = gib(answer.required_host_bytes_per_node)
    if cluster.host_memory_bytes_per_node is not None:
        host = f"{host} of {gib(cluster.host_memory_bytes_per_node)}"
    speed = "unknown"
    if answer.fit.verdict == "does not fit":
        speed = "does not fit"
    elif step is not None:
        speed = f"{seconds(step.time.step_s)}, {rate(step.time.tokens_per_s)} {answer.unit}/s"
    return {
        "strategy": (f"zero{engine.zero_stage}" if engine.zero_stage else "ddp") if plan is None else plan.strategy,
        "batch": f"{engine.micro_batch_size} x {engine.gradient_accumulation_steps}, {total} a step",
        "checkpointing": "on" if observed.recomputes else "off",
        "GPU": f"{gib(answer.required_device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB",
        "host RAM": f"{host} GiB per node",
        "verdict": _verdict_cell(answer.fit),
        "step": speed,
    }


def _verdict_cell(fit: Fit) -> str:
    """Return a verdict for a narrow column, with the RAM of its condition."""
    needs = f"fits with {whole_gib(fit.assumed_host_bytes):,} GiB of RAM"
    return needs if fit.reason == IF_RAM_ALLOWS else fit.reason


def changes_to_make(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield what to change: files, lines, and the command."""
    changed, chosen = answer.changed, answer.recommended
    if changed is None or chosen is None or answer.is_needless:
        return
    yield doc.Heading("What to change", "changes", printed=False)
    if answer.files:
        new = [path for path in answer.files if path not in answer.reused_files]
        wrote = (
            f"Wrote {', '.join(new)}" if new else f"{', '.join(answer.files)} has this content from an earlier answer"
        )
        kept = f"; {answer.kept_config} {IS_ANOTHER}" if answer.kept_config else ""
        yield doc.Sentence(f"{wrote}{kept}.")
    elif changed.files:
        yield doc.Sentence(f"Write {', '.join(changed.files)} (--json has the text).")
    if moved := moved_precision(answer.words, changed):
        yield doc.Sentence(moved)
    for line in changed.lines:
        yield doc.Sentence(f"{_where(line)}: {line.text}")
    if answer.needs_its_lines:
        yield doc.Sentence("Without gradient checkpointing the plan does not fit, by the prediction.", "yellow")
    words = answer.start
    if changed.gives_config:
        words = ["ds-advise", "launch", next(iter(changed.files)), "--", *changed.words]
    exports = [f"export {setting}" for setting, _ in start_settings(answer, chosen)]
    text = "Then the command is:"
    if tuple(words) == answer.typed_words:
        text = "The command stays as it is, after a setting:" if exports else "The command stays as it is:"
    yield doc.Sentence(text)
    yield doc.Commands([*exports, shell_line(words)])


def moved_precision(words: Sequence[str], changed: ChangedCommand) -> str:
    """Return which file sets the precision that the command's words named to accelerate, which takes it from one place
    alone; "" if the words still name it, or never did."""

    def names_it(words: Sequence[str]) -> bool:
        flags = (word.partition("=")[0] for word in words if word.startswith("--"))
        return any(option_name(flag) == "mixed_precision" for flag in flags)

    if not changed.files or not names_it(words) or names_it(changed.words):
        return ""
    name, text = next(iter(changed.files.items()))
    return f"{name} sets {precision_in(json.loads(text))}, in place of --mixed_precision."


def _where(line: ChangedLine) -> str:
    """Return what to do where: `In train.py:7`, or `First add in train.py, after the model is made (line 7)`."""
    place = _place(line.place)
    if not line.after:
        return f"In {place or 'the script'}"
    file, _, number = place.rpartition(":")
    return f"First add in {file or 'the script'}, after {line.after}" + (f" (line {number})" if number else "")


def _place(place: str) -> str:
    """FILE:LINE with the file's path from the working folder if it is below."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def _plans(answer: CommandAdvice, left_out: tuple[str, ...], *, details: bool) -> Iterator[doc.Block]:
    if "plans" in left_out:
        return
    yield doc.Heading("Every strategy", "ladder", printed=False)
    shown: Shown = "fits the GPU" if "not fitting" in left_out else "all"
    yield ladder_table(
        answer,
        shown=shown,
        details=details,
        today=answer.today_row,
        today_title=answer.today_title,
        keeps_today=answer.is_needless,
    )


def _evidence(answer: CommandAdvice) -> Iterator[doc.Block]:
    yield doc.Heading("Evidence", "evidence", printed=False)
    yield from failed_proofs(answer)
    if answer.proof is not None and answer.proof.answer is not None:
        other = f"under {answer.proof.candidate.strategy}" if answer.is_needless else "as advised"
        text = f"Evidence: dry runs of the command as it is and {other}; the other plans are predicted."
    else:
        text = "Evidence: a dry run of the command as it is; the plans are predicted."
    yield doc.Sentence(text, "dim")


def failed_proofs(answer: CommandAdvice) -> Iterator[doc.Block]:
    """Yield the plans whose dry runs failed, each with its problem, and those that were not tried."""
    for proof in answer.proofs:
        if proof.problem:
            problem = shown_paths(proof.problem)
            yield doc.Sentence(f"Tried {plan_words(proof.candidate.plan)}: {problem}.", "yellow")
    if answer.not_tried:
        names = listed([each.strategy for each in answer.not_tried])
        others = "" if answer.recommended is None else ", under which the script may fail as well"
        yield doc.Sentence(f"Not tried: {names}{others}.", "yellow")


def _next(answer: CommandAdvice, *, is_short: bool) -> Iterator[doc.Block]:
    """Yield the next command: the one that starts the training, or if nothing fits, shows its memory. is_short: only
    name what comes in front of the command of the changes."""
    changed, words = answer.changed, answer.words
    given = [] if answer.given_config is None else [str(answer.given_config)]
    if changed is None and not answer.is_needless:
        gpus = ["--gpus", gpus_argument(answer.question.cluster)]
        line = shell_line(["ds-advise", "dry-run", *given, *gpus, "--", *words])
        yield from next_command("See what takes the memory:", line)
    elif changed is None or answer.is_needless:
        yield from next_command(START, shell_line(["ds-advise", "launch", *given, "--", *words]))
    elif changed.gives_config:
        return  # it is the command of the changes
    elif is_short:
        yield doc.Sentence("`ds-advise launch -- COMMAND` checks, starts and monitors it.")
    else:
        yield from next_command(START, shell_line(["ds-advise", "launch", "--", *changed.words]))


def deliver_command_advice(
    answer: CommandAdvice, folder: Path, output: Output, *, writes: bool, force: bool, details: bool = False
) -> int:
    """Write the new files, show the advice, and return the exit code. A file with other content is refused before
    anything is written or shown. If writing fails, the advice is shown before the error is raised."""
    failure: DsAdviseError | None = None
    if writes:
        answer, failure = with_files(answer, folder, force=force)

    def render(console: Console) -> None:
        from ..document.terminal import print_document  # imported here: JSON needs no terminal library

        print_document(command_advice_document(answer, details=details), console)

    output.show(answer.to_json, render)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None or answer.is_needless else 1


def with_files(answer: CommandAdvice, folder: Path, *, force: bool) -> tuple[CommandAdvice, DsAdviseError | None]:
    """Write the new files of an advice, and return it with their paths, and the error if writing fails. Raises
    ConfigFileError, before anything is written, for a file with other content."""
    if answer.changed is None or answer.is_needless:
        return answer, None
    files = answer.changed.files
    for path, text in files.items():
        check_write(text, folder / path, force=force)
    there = [path for path in files if (folder / path).exists()]  # --force replaces other content
    reused = tuple(path for path in there if not differs(files[path], folder / path))
    is_numbered = any(_NUMBERED.fullmatch(path) for path in files) and (folder / CONFIG_NAME).exists()
    answer = replace(answer, reused_files=reused, kept_config=CONFIG_NAME if is_numbered else "")
    try:
        for path, text in files.items():
            write_text(text, folder / path, force=force)
            answer = replace(answer, files=(*answer.files, path))
    except DsAdviseError as error:
        return answer, error
    return answer, None
