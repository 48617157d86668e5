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
    """Return what the checkpoint is, whether it is whole, and its possible uses."""
    contents, damaged = answer.contents, answer.damaged
    name = printable(contents.folder)
    blocks: list[doc.Block] = [doc.Sentence(f"{_kind(contents)}, {size(contents.size_bytes)} in all.")]
    blocks += [doc.Sentence(f"  {printable(file.name)} {file.problem}", hang=4) for file in damaged[:_MOST_FILES]]
    if len(damaged) > _MOST_FILES:
        blocks.append(doc.Sentence(f"  and {len(damaged) - _MOST_FILES} more (--json)"))
    if answer.conversion is not None:
        done = answer.conversion
        written = (
            f"Wrote {printable(answer.written)}: {count(done.parameters)} parameters in {done.dtype}, "
            f"{gib(done.written_bytes)} GiB, with at most {gib(done.peak_bytes)} GiB of RAM."
        )
        blocks.append(doc.Sentence(written))
    elif not damaged:
        blocks += _next_steps(contents)
    return doc.Document(
        subject=name,
        verdict=f"{name} {_verdict(answer)}, by the {answer.evidence} of its files.",
        tone="bad" if damaged else "good",
        blocks=blocks,
        data=answer,
    )


def _verdict(answer: CheckpointAnswer) -> str:
    if answer.contents.is_model:
        return f"is a model folder, whose files are {'damaged' if answer.damaged else 'whole'}"
    return "is damaged" if answer.damaged else "is whole"


def _kind(contents: CheckpointContents) -> str:
    if contents.stage == "none":
        return f"No states to resume from; weights in {', '.join(contents.weights)}"
    ranks = f" of {contents.ranks} ranks" if contents.ranks else ""
    split = f", layers split by {contents.model_ranks}" if contents.model_ranks > 1 else ""
    step = "" if contents.step is None else f", step {contents.step}"
    states = f", optimizer states {size(contents.optimizer_bytes)}" if contents.optimizer_bytes else ""
    return f"ZeRO-{contents.stage}{ranks}{split}{step}{states}"


def _next_steps(contents: CheckpointContents) -> Iterator[doc.Block]:
    folder = printable(contents.folder)
    if contents.weights:
        yield doc.Sentence("from_pretrained can read its weights directly.")
    elif contents.stage in ("1 or 2", "3") and contents.model_ranks == 1:
        yield doc.Gap()
        yield doc.Sentence("Its weights as a Hugging Face model:")
        yield doc.Commands([f"ds-advise checkpoint {folder} --to-hf my-model"])
    if contents.stage == "0":
        yield doc.Sentence("Training resumes from it on any number of GPUs.")
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
