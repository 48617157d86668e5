"""A checkpoint as a document, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...estimators.json_form import SCHEMA_VERSION
from ...validate.checkpoint import CheckpointFile
from ...validate.checkpoint_weights import CheckpointContents, Conversion
from ..document import blocks as doc
from ..text.units import count, gib, printable, size

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


def checkpoint_document(answer: CheckpointAnswer) -> doc.Document:
    """Return what the checkpoint is, whether it is whole, and its possible uses; then damage, sizes and commands."""
    contents, damaged = answer.contents, answer.damaged
    name = printable(contents.folder)
    state = "damaged" if damaged else "whole"
    blocks: list[doc.Block] = [
        doc.Sentence(f"It is {state}, by the {answer.evidence} of its files.", "bad" if damaged else "good"),
        doc.Sentence("Do not use it: take an earlier one." if damaged else _uses(contents)),
    ]
    blocks += [doc.Sentence(f"  {printable(file.name)} {file.problem}", hang=4) for file in damaged[:_MOST_FILES]]
    if len(damaged) > _MOST_FILES:
        blocks.append(doc.Sentence(f"  and {len(damaged) - _MOST_FILES} more (--json)"))
    blocks += [doc.Heading("Sizes", "sizes", printed=False), _sizes(contents)]
    if answer.conversion is not None:
        done = answer.conversion
        written = (
            f"Wrote {printable(answer.written)}: {count(done.parameters)} parameters in {done.dtype}, "
            f"{gib(done.written_bytes)} GiB, with at most {gib(done.peak_bytes)} GiB of RAM."
        )
        blocks += [doc.Gap(), doc.Sentence(written)]
    elif not damaged:
        blocks += _next_steps(contents)
    return doc.Document(subject=name, verdict=f"{name} is {_kind(contents)}.", tone=None, blocks=blocks, data=answer)


def _kind(contents: CheckpointContents) -> str:
    if contents.is_model:
        return "a model folder"
    step = "" if contents.step is None else f" at step {contents.step}"
    if contents.stage == "none":
        return f"a checkpoint{step} without states to resume from"
    ranks = f" of {contents.ranks} ranks" if contents.ranks else ""
    split = f", layers split by {contents.model_ranks}" if contents.model_ranks > 1 else ""
    return f"a ZeRO-{contents.stage} checkpoint{ranks}{split}{step}"


def _can_export(contents: CheckpointContents) -> bool:
    return not contents.weights and contents.stage in ("1 or 2", "3") and contents.model_ranks == 1


def _uses(contents: CheckpointContents) -> str:
    """Return what one can do with an intact checkpoint."""
    uses = {
        "resume on any number of GPUs": contents.stage == "0",
        f"resume with {contents.ranks} ranks": contents.stage in ("1 or 2", "3"),
        "load its weights with from_pretrained": bool(contents.weights),
        "export its weights as a model": _can_export(contents),
        "convert it for another number of GPUs": contents.stage in ("1 or 2", "3"),
    }
    possible = [use for use, is_possible in uses.items() if is_possible]
    return f"You can {', or '.join(possible)}." if possible else "It has nothing to load."


def _sizes(contents: CheckpointContents) -> doc.Table:
    rest = contents.size_bytes - contents.optimizer_bytes
    parts = {"optimizer states": contents.optimizer_bytes, "weights and the rest": rest}
    rows = [
        doc.Row([name, doc.make_figure(part, size), doc.Meter(part / (contents.size_bytes or 1))])
        for name, part in parts.items()
        if part
    ]
    rows.append(doc.Row(["in all", doc.make_figure(contents.size_bytes, size), ""]))
    return doc.Table(["", "size", ""], rows, optional=(2,))


def _next_steps(contents: CheckpointContents) -> Iterator[doc.Block]:
    folder = printable(contents.folder)
    if _can_export(contents):
        yield doc.Gap()
        yield doc.Sentence("Its weights as a Hugging Face model:")
        yield doc.Commands([f"ds-advise checkpoint {folder} --to-hf my-model"])
    if contents.stage in ("1 or 2", "3"):
        sharded = contents.stage == "3"
        where = "also ZeRO-3" if sharded else "ZeRO-1 or 2"
        yield doc.Sentence(f"For another number of GPUs, {where}, convert it, and set checkpoint.load_universal:")
        states = f"{folder.rstrip('/')}/{contents.tag}"
        # Below stage 3, the converter needs an entry that only Megatron's checkpoints have.
        options = (
            f"--input_folder {states} --output_folder {states}_universal{' --inject_missing_state' * (not sharded)}"
        )
        yield doc.Commands([f"python -m deepspeed.checkpoint.ds_to_universal {options}"])
