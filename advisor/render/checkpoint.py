"""A checkpoint as a document, and as JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...estimators.json_form import SCHEMA_VERSION
from ...validate.checkpoint import CheckpointFile
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
    conversion: Conversion | None
    """Null if nothing was converted."""
    written: str
    """The folder with the model; "" if none was written."""


def checkpoint_document(answer: CheckpointAnswer, *, is_one_of_several: bool = False) -> doc.Document:
    """Return what the checkpoint is, whether it is whole, and its possible uses; then damage, sizes and commands.
    is_one_of_several: whether its folder contains other checkpoints that were not read."""
    contents, name = answer.contents, printable(answer.contents.folder)
    blocks: list[doc.Block] = [*(_damage(answer) if answer.damaged else _whole(answer))]
    if answer.damaged and is_one_of_several:
        blocks.append(doc.Sentence("The newest whole checkpoint of the same training:"))
        blocks.append(doc.Commands([f"ds-advise checkpoint {_quoted(_shortest(str(Path(contents.folder).parent)))}"]))
    blocks += [doc.Heading("Sizes", "sizes", printed=False), _sizes(contents)]
    if answer.conversion is None and not answer.damaged:
        blocks += _next_steps(contents)
    verdict = f"{name}: {_kind(contents)}, {size(contents.size_bytes)}"
    return doc.Document(subject=name, verdict=verdict, tone=None, blocks=blocks, data=answer)


def _kind(contents: CheckpointContents) -> str:
    if contents.is_model:
        return "model folder"
    step = "" if contents.step is None else f", step {contents.step:,}"
    if contents.stage == "none":
        return f"checkpoint without states to resume from{step}"
    ranks = f" of {counted_noun(contents.ranks, 'rank')}" if contents.ranks else ""
    split = f", layers split by {contents.model_ranks}" if contents.model_ranks > 1 else ""
    return f"ZeRO-{contents.stage} checkpoint{ranks}{split}{step}"


def _whole(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    evidence = {
        "checksums": "every file equals the saved one, by its checksum",
        "structure": "every file was read, and none is missing or cut off",
    }
    yield doc.Sentence(f"Whole: {evidence[answer.evidence]}.", "good")
    if (done := answer.conversion) is None:
        yield doc.Sentence(_uses(answer.contents))
        return
    yield doc.Sentence(
        f"Wrote {printable(answer.written)}, which from_pretrained loads: {count(done.parameters)} parameters in "
        f"{done.dtype}, {size(done.written_bytes)}, with at most {gib(done.peak_bytes)} GiB of RAM."
    )


def _damage(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    damaged = answer.damaged
    yield doc.Sentence(f"Damaged: {counted_noun(len(damaged), 'file')}. Do not resume from it.", "bad")
    yield from (doc.Sentence(f"  {printable(file.name)} {file.problem}", hang=4) for file in damaged[:_MOST_FILES])
    if len(damaged) > _MOST_FILES:
        yield doc.Sentence(f"  and {len(damaged) - _MOST_FILES} more (--json)")


def _quoted(path: str) -> str:
    return shlex.quote(printable(path))


def _shortest(path: str) -> str:
    """Return the path, relative to the current folder where that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def _can_export(contents: CheckpointContents) -> bool:
    return not contents.weights and contents.stage in ("1 or 2", "3") and contents.model_ranks == 1


def _uses(contents: CheckpointContents) -> str:
    """Return what one can do with an intact checkpoint."""
    uses = {
        "resume on any number of GPUs": contents.stage == "0",
        f"resume with {counted_noun(contents.ranks, 'rank')}": contents.stage in ("1 or 2", "3"),
        "load its weights with from_pretrained": bool(contents.weights),
        "export its weights": _can_export(contents),
        "convert it for other GPUs": contents.stage in ("1 or 2", "3"),
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
        yield doc.Commands([f"ds-advise checkpoint {_quoted(_shortest(contents.folder))} --to-hf my-model"])
    if contents.stage in ("1 or 2", "3"):
        sharded = contents.stage == "3"
        yield doc.Gap()
        stages = "ZeRO-3" if sharded else "ZeRO-1 or 2"
        yield doc.Sentence(f"For another number of GPUs ({stages}), convert it and set checkpoint.load_universal:")
        states = _shortest(f"{contents.folder.rstrip('/')}/{contents.tag}")
        # Below stage 3, the converter needs an entry that only Megatron's checkpoints have.
        folders = f"--input_folder {_quoted(states)} --output_folder {_quoted(f'{states}_universal')}"
        injects = "" if sharded else " --inject_missing_state"
        yield doc.Commands([f"python -m deepspeed.checkpoint.ds_to_universal {folders}{injects}"])
