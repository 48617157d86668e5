"""The better configuration in the file's format: the tool's file with the fewest possible changes, and the DeepSpeed
configuration that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config, merge_plan_into_config
from ...ds_configs.files import config_text, write_text
from ...estimators.errors import ConfigFileError
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...validate.lint import LintReport, apply, lint, load_facts, read_document
from ...validate.lint.document import Document
from ..question.question import Question
from .figures import ImportFigures
from .imported_run import DeepSpeedPart, ImportedRun
from .source import Source, parse_source
from .tool_format import Format

_RULES_ON_FIGURES = ("DS901", "DS902", "DS903", "DS904")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """The text of a file before and after a change."""

    old_name: str
    """Name before the change; "" for a new file."""
    old_text: str
    new_path: Path
    new_text: str


def changed_files(
    source: Source,
    form: Format,
    run: ImportedRun,
    figures: ImportFigures,
    document: Document | None,
    report: LintReport | None,
    *,
    destination: Path | None,
) -> tuple[ChangedFile, ...]:
    """The tool's file and the DeepSpeed configuration with the better plan, or else with corrections of tool errors and
    lint findings that do not change the training. Empty if nothing changes. Raises ConfigFileError if the file's form
    does not allow the change."""
    plan = figures.plan
    if figures.is_better and figures.recommended is not None:
        plan = figures.recommended.plan
    if plan is not figures.plan or (run.faults and run.sharding == "zero"):
        text = better_config(run, plan, figures.question, accelerate=form.name == "accelerate")
    else:
        text = None if document is None or report is None else _corrected_text(document, report)
        if text is None:
            return ()
    workload = figures.question.workload if plan is not figures.plan else None
    files = plan_files(source, form, run, plan, text, destination=destination, workload=workload)
    # A plan of the same backend may differ in what only the script sets.
    return files if any(file.new_text != file.old_text for file in files) else ()


def plan_files(
    source: Source,
    form: Format,
    run: ImportedRun,
    plan: Plan,
    config_text: str | None,
    *,
    destination: Path | None,
    workload: Workload | None = None,
) -> tuple[ChangedFile, ...]:
    """The files that run this plan.

    config_text: the DeepSpeed configuration; None for a plan without DeepSpeed.
    workload: the training with the loss and the kind of checkpointing to write; None keeps those of the run.

    Raises ConfigFileError if the file's form does not allow the change.
    """
    path = destination or source.path
    named = run.deepspeed.name if run.deepspeed is not None and run.deepspeed.path is not None else ""
    config_path = path.with_name(f"{path.stem}.ds_config.json")
    if destination is None and named.endswith(".json"):  # next to the configuration that is replaced
        config_path = Path(named).with_name(config_path.name)
    part = None
    if config_text is not None:
        config = read_document(config_text.encode(), name="the new file").value
        part = DeepSpeedPart(name=str(config_path), config=config)
    text = source.edited(form.changes(source, run, plan, part, workload))
    _check(source, form, text, plan, workload, has_config=part is not None)
    files = [ChangedFile(old_name=str(source.path), old_text=source.text, new_path=path, new_text=text)]
    if config_text is not None and str(config_path) in text:  # else it is part of the file itself
        old = run.deepspeed.path if run.deepspeed is not None else None
        files.append(
            ChangedFile(
                old_name="" if old is None else str(old),
                old_text="" if old is None else old.read_text(encoding="utf-8-sig"),
                new_path=config_path,
                new_text=config_text,
            )
        )
    return tuple(files)


def changed_keys(source: Source, file: ChangedFile) -> list[str]:
    """The changed keys of the tool's file or of a DeepSpeed configuration: `key: old -> new`, `key: new` for an added
    one, and `no key` for a removed one."""
    kind = source.kind if file.old_name == str(source.path) else "json"
    texts = (file.old_text or "{}", file.new_text)
    old, new = (parse_source(file.new_path, text, kind).values for text in texts)
    return list(_changed(old, new, ""))


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], block: str) -> Iterator[str]:
    for key, value in new.items():
        before, name = old.get(key), f"{block}{key}"
        inside = before if isinstance(before, Mapping) else {}
        if key in old and before == value:
            continue
        if isinstance(value, Mapping) and value and (inside or key not in old):
            yield from _changed(inside, value, f"{name}.")
            continue
        yield f"{name}: {_in_line(before)} -> {_in_line(value)}" if key in old else f"{name}: {_in_line(value)}"
    yield from (f"no {block}{key}" for key in old if key not in new)


def _in_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write_files(files: tuple[ChangedFile, ...], *, force: bool) -> tuple[Path, ...]:
    """Write the files; a configuration is written before the file that names it. Raises ConfigFileError for an existing
    file with other contents, unless `force` is set."""
    for file in reversed(files):
        write_text(file.new_text, file.new_path, force=force)
    return tuple(file.new_path for file in files)


def better_config(run: ImportedRun, plan: Plan, question: Question, *, accelerate: bool) -> str | None:
    """The text of the DeepSpeed configuration for a plan, including the run's own keys that the plan does not decide;
    None for a plan without DeepSpeed."""
    if plan.sharding != "zero":
        return None
    own = run.deepspeed.config if run.deepspeed is not None else None
    written = ds_config(plan, question.model, question.workload, question.cluster, flavor="hf")
    config = merge_plan_into_config(own or {}, written, plan)
    for name in ("train_batch_size", "gradient_clipping"):
        if own is not None and name not in own:  # a key that the run's file lacks stays absent
            config.pop(name, None)
    if accelerate:
        config = _for_accelerate(config, own or {}, question.workload, plan.gradient_accumulation_steps)
    elif "optimizer" in config and "optimizer" not in (own or {}):  # the Trainer stops where they are not its own
        config["optimizer"]["params"] |= dict.fromkeys({"betas", "eps"} & config["optimizer"]["params"].keys(), "auto")
    # The order of the user's file keeps the difference short.
    in_order = {name: config[name] for name in own or {} if name in config}
    document = read_document(config_text(in_order | config).encode(), name="the new configuration")
    return _corrected_text(document, lint_part(document, question)) or document.text


def lint_part(document: Document, question: Question | None, *, in_accelerates_file: bool = False) -> LintReport:
    """Lint result of a DeepSpeed configuration. If a question is given, model and machines are known. The rules on
    memory and speed are skipped: the figures use the batch that the configuration leaves to the tool.

    in_accelerates_file: whether accelerate makes the configuration from fields of its own file, in which "auto" stops a
        plain `Accelerator()`; the rule whose fix is "auto" is skipped.
    """
    known: dict[str, Any] = {}
    if question is not None:
        known = {"cluster": question.cluster, "model": question.model, "workload": question.workload}
    report = lint(document, facts=load_facts(), framework="hf", **known)
    skipped = (*_RULES_ON_FIGURES, *(["DS154"] if in_accelerates_file else []))
    return replace(report, findings=tuple(each for each in report.findings if each.code not in skipped))


def _for_accelerate(
    config: Mapping[str, Any], own: Mapping[str, Any], workload: Workload, steps: int
) -> dict[str, Any]:
    """The configuration including the settings that accelerate refuses in its own file, and without an added optimizer,
    because the script has one."""
    config = {name: value for name, value in config.items() if name != "optimizer" or "optimizer" in own}
    for name in ("bf16", "fp16"):
        if isinstance(config.get(name), Mapping) and config[name].get("enabled") == "auto":
            config[name] = {**config[name], "enabled": workload.precision == name}
    # A number stays one: accelerate would replace "auto" by the script's, which is 1 in a plain `Accelerator()`. A file
    # without the key has 1 (1.15 utils/dataclasses.py `DeepSpeedPlugin`), and a Trainer of any number takes it. Without
    # a file the script alone decides.
    key = "gradient_accumulation_steps"
    if own and key not in own and steps == 1:
        return {name: value for name, value in config.items() if name != key}
    return {**config, key: "auto" if not own or own.get(key) == "auto" else steps}


def _corrected_text(document: Document, report: LintReport) -> str | None:
    text, made = apply(document, report.edits)
    return text if made else None


def _check(source: Source, form: Format, text: str, plan: Plan, workload: Workload | None, *, has_config: bool) -> None:
    """Read the changed text again. Raises ConfigFileError if its run is not that of the plan."""
    changed = form.read(parse_source(source.path, text, source.kind))
    accelerate = form.name == "accelerate"
    same = (
        changed.micro_batch_size in (None, plan.micro_batch_size)
        and changed.gradient_accumulation_steps in (plan.gradient_accumulation_steps, *([1] if accelerate else []))
        and (accelerate or bool(changed.gradient_checkpointing) == plan.gradient_checkpointing)
        and (changed.deepspeed is not None) == has_config
        and (accelerate or workload is None or workload.loss != "fused" or changed.training.get("loss") == "fused")
    )
    if not same:
        raise ConfigFileError(
            "single options of this file cannot be changed in its present form",
            why="several options share a value",
            fix="write each option with its own value",
        )
