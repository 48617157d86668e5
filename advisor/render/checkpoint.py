"""A checkpoint as a document, and as JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...estimators.json_form import SCHEMA_VERSION
from ...validate.checkpoint import CheckpointFile, is_only_latest
from ...validate.checkpoint_weights import CheckpointContents, Conversion
from ..document import blocks as doc
from ..text.units import count, counted_noun, gib, printable, size

_MOST_FILES = 5
"""Largest number of damaged files that are listed."""


@dataclass(frozen=True, kw_only=True)
class CheckpointAnswer:
    """Contents of a checkpoint, its damage, and its conversion."""

    schema_version: int = SCHEMA_VERSION
    contents: CheckpointContents
    evidence: Literal["checksums", "structure"]
    """checksums: the files equal the saved ones; structure: the files' archives are complete."""
    damaged: tuple[CheckpointFile, ...]
    non_finite: int
    """Number of values in the files that are NaN, and of infinite ones in optimizer states."""
    non_finite_file: str
    """The first file with such a value; "" without."""
    unexamined: int
    """Number of files of tensors whose values were not examined."""
    conversion: Conversion | None
    """Null if nothing was converted."""
    written: str
    """The folder with the model; "" if none was written."""


def checkpoint_document(answer: CheckpointAnswer, *, instead: Path | None = None) -> doc.Document:
    """Return what the checkpoint is, whether it is whole, and its possible uses; then damage, sizes and commands.
    instead: for one that must not be used, the newest usable checkpoint or folder of states of the same training."""
    contents = answer.contents
    name = printable(_named(contents))
    blocks: list[doc.Block] = [*(_damage(answer) if answer.damaged else _whole(answer))]
    if instead is not None and instead.parent == Path(contents.folder):
        blocks += _load(contents, instead.name, "Other states in the folder are whole")
    elif instead is not None:
        newest = printable(_shortest(str(instead)))
        blocks.append(doc.Sentence(f"The newest whole checkpoint of the same training is {newest}."))
    if said := _saved(contents):
        blocks.append(doc.Sentence(f"Saved {said}."))
    blocks += [doc.Heading("Sizes", "sizes", printed=False), _sizes(contents)]
    if answer.conversion is None and not answer.damaged and not answer.non_finite:
        blocks += _next_steps(contents)
    verdict = f"{name}: {_kind(contents)}, {size(contents.size_bytes)}"
    return doc.Document(subject=name, verdict=verdict, tone=None, blocks=blocks, data=answer)


def _saved(contents: CheckpointContents) -> str:
    by = f"by DeepSpeed {printable(contents.version)}" if contents.version else ""
    of = f"with {count(contents.parameters)} parameters" if contents.parameters else ""
    return " ".join(filter(None, (by, of)))


def _kind(contents: CheckpointContents) -> str:
    if contents.is_model:
        return "model folder"
    step = "" if contents.step is None else f", step {contents.step:,}"
    if contents.is_universal:
        return f"universal checkpoint of ZeRO-{contents.stage}{step}"
    if contents.stage == "none":
        return f"checkpoint without states to resume from{step}"
    ranks = f" of {counted_noun(contents.ranks, 'rank')}" if contents.ranks else ""
    split = f", layers split by {contents.model_ranks}" if contents.model_ranks > 1 else ""
    if contents.stage == "0":
        return f"checkpoint without ZeRO{split}{step}"
    return f"ZeRO-{contents.stage} checkpoint{ranks}{split}{step}"


def _whole(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    evidence = {
        "checksums": "every file equals the saved one, by its checksum",
        "structure": "every file was read, none is missing or cut off",
    }
    numbers = "" if answer.non_finite or answer.unexamined else "; no value is NaN"
    yield doc.Sentence(f"Whole: {evidence[answer.evidence]}{numbers}.", "good")
    if answer.unexamined:
        yield doc.Sentence(f"In {counted_noun(answer.unexamined, 'file')}, the values were not examined for NaN.")
    if answer.conversion is not None:
        yield from _written(answer.written, answer.conversion)
        return
    if answer.non_finite:
        yield _non_finite(answer.non_finite, answer.non_finite_file, "do not resume from it")
        return
    yield doc.Sentence(_uses(answer.contents))
    there = f"names {printable(answer.contents.latest)}" if answer.contents.latest else "is missing"
    yield from _latest(answer.contents, f"`{_latest_file(answer.contents)}` {there}")


def _written(folder: str, done: Conversion) -> Iterator[doc.Block]:
    loads = ", which from_pretrained loads" if done.has_config else ""
    yield doc.Sentence(
        f"Wrote {printable(folder)}{loads}: {count(done.parameters)} parameters in {done.dtype}, "
        f"{size(done.written_bytes)}, with at most {gib(done.peak_bytes)} GiB of RAM."
    )
    lacks = {"config.json": not done.has_config, "tokenizer": not done.has_tokenizer}
    if lacking := [part for part, is_lacking in lacks.items() if is_lacking]:
        them = "it" if len(lacking) == 1 else "them"
        need = "" if done.has_config else ", which from_pretrained needs"
        yield doc.Sentence(
            f"The checkpoint has no {' and no '.join(lacking)}{need}: copy {them} from the "
            "model that the training started from.",
            "" if done.has_config else "unsure",
        )
    if done.non_finite:
        yield _non_finite(done.non_finite, done.non_finite_tensor, "take an earlier checkpoint")


def _non_finite(values: int, first: str, advice: str) -> doc.Sentence:
    are = "is" if values == 1 else "are"
    found = f"{counted_noun(values, 'value')} {are} NaN or infinite, the first in {printable(first)}"
    return doc.Sentence(f"{found}: {advice}.", "bad")


def _latest_file(contents: CheckpointContents) -> str:
    return "latest_universal" if contents.is_universal else "latest"


def _latest(contents: CheckpointContents, found: str) -> Iterator[doc.Block]:
    """How to load a folder of states that the file `latest` does not name. found: what is wrong, as a sentence."""
    if not contents.tag or contents.tag == contents.latest:
        return
    yield from _load(contents, contents.tag, found)


def _load(contents: CheckpointContents, tag: str, found: str) -> Iterator[doc.Block]:
    file, tag = _latest_file(contents), printable(tag)
    yield doc.Sentence(f'{found}. Load {tag} with tag="{tag}", or let `{file}` name it:')
    path = _shortest(str(Path(contents.folder) / file))
    yield doc.Commands([f"echo {shlex.quote(tag)} > {_quoted(path)}"])


def _damage(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    damaged, only_latest = answer.damaged, is_only_latest(answer.damaged)
    use = "It cannot be resumed as it is." if only_latest else "Do not resume from it."
    yield doc.Sentence(f"Damaged: {counted_noun(len(damaged), 'file')}. {use}", "bad")
    yield from (doc.Sentence(f"  {printable(file.name)} {file.problem}", hang=4) for file in damaged[:_MOST_FILES])
    if len(damaged) > _MOST_FILES:
        yield doc.Sentence(f"  and {len(damaged) - _MOST_FILES} more (--json)")
    if only_latest:
        yield from _latest(answer.contents, f"The folder holds {printable(answer.contents.tag)}")


def _quoted(path: str) -> str:
    return shlex.quote(printable(path))


def _named(contents: CheckpointContents) -> str:
    return _states(contents) if contents.is_tag_named else contents.folder


def _states(contents: CheckpointContents) -> str:
    return str(Path(contents.folder) / contents.tag)


def _shortest(path: str) -> str:
    """Return the path, relative to the current folder where that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def _can_export(contents: CheckpointContents) -> bool:
    return not contents.weights and not contents.is_universal and contents.stage != "none" and contents.model_ranks == 1


def _stages(contents: CheckpointContents) -> str:
    """Return the stages that load the states."""
    return "ZeRO-1 or 2" if contents.joins_partitions else "ZeRO-3"


def _uses(contents: CheckpointContents) -> str:
    """Return what one can do with an intact checkpoint."""
    if contents.is_universal:
        return f"You can resume with {_stages(contents)} on any number of GPUs, with checkpoint.load_universal."
    uses = {
        "resume on any number of GPUs": contents.stage == "0",
        f"resume with {counted_noun(contents.ranks, 'rank')}": contents.has_zero_states,
        "load its weights with from_pretrained": bool(contents.weights),
        "export its weights": _can_export(contents),
        "convert it for other GPUs": contents.has_zero_states and not contents.converted,
    }
    *others, last = [use for use, is_possible in uses.items() if is_possible] or ["load nothing from it"]
    return f"You can {', '.join(others)}{' or ' * bool(others)}{last}."


def _sizes(contents: CheckpointContents) -> doc.Table:
    known = {"optimizer states": contents.optimizer_bytes, "model states and weights": contents.weights_bytes}
    parts = known | {"other files": contents.size_bytes - sum(known.values())}
    most = max(1, *parts.values())
    inks = ("optimizer", "weights", "other")
    rows = [
        doc.Row([name, doc.make_figure(part, size), doc.Meter(part / most, ink=ink)])
        for (name, part), ink in zip(parts.items(), inks, strict=True)
        if part
    ]
    return doc.Table(["", "", ""], rows, optional=(2,))


def _next_steps(contents: CheckpointContents) -> Iterator[doc.Block]:
    if _can_export(contents):
        yield doc.Gap()
        yield doc.Sentence("Export the weights as a Hugging Face model:")
        yield doc.Commands([f"ds-advise checkpoint {_quoted(_shortest(_named(contents)))} --to-hf my-model"])
    if contents.converted:
        yield doc.Gap()
        yield doc.Sentence(
            f"It was converted for another number of GPUs ({_stages(contents)}): set checkpoint.load_universal. "
            "Check what was written:"
        )
        converted = _shortest(str(Path(contents.folder) / contents.converted))
        yield doc.Commands([f"ds-advise checkpoint {_quoted(converted)}"])
    elif contents.has_zero_states and not contents.is_universal:
        sharded = contents.stage == "3"
        yield doc.Gap()
        yield doc.Sentence(
            f"For another number of GPUs ({_stages(contents)}), convert it and set checkpoint.load_universal:"
        )
        states = os.path.normpath(Path(_shortest(contents.folder)) / contents.tag)
        # Below stage 3, the converter needs an entry that only Megatron's checkpoints have.
        folders = f"--input_folder {_quoted(states)} --output_folder {_quoted(f'{states}_universal')}"
        injects = "" if sharded else " --inject_missing_state"
        yield doc.Commands([f"python -m deepspeed.checkpoint.ds_to_universal {folders}{injects}"])
