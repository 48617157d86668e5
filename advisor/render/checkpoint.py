"""A checkpoint as a document, and as JSON."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...estimators.json_form import SCHEMA_VERSION
from ...validate.checkpoint import CheckpointFile, is_only_latest
from ...validate.checkpoint_class import ClassComparison
from ...validate.checkpoint_contents import CheckpointContents
from ...validate.checkpoint_weights import Conversion, merge_command
from ..document import blocks as doc
from ..text.units import count, counted_noun, ended, gib, printable, size

_MOST_FILES = 5
"""Largest number of damaged files that are listed."""


@dataclass(frozen=True, kw_only=True)
class UnusableCheckpoint:
    """A checkpoint from which a training must not resume."""

    folder: str
    problem: str
    """The first damaged file, or the one with NaN, in one phrase."""
    damaged: tuple[CheckpointFile, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointAnswer:
    """Contents of a checkpoint, its damage, and its conversion."""

    schema_version: int = SCHEMA_VERSION
    newer: tuple[UnusableCheckpoint, ...]
    """The newer checkpoints of the named folder, which are damaged or hold NaN; the newest first."""
    contents: CheckpointContents
    evidence: Literal["checksums", "structure"]
    """checksums: the files equal the saved ones; structure: the files' archives are complete."""
    damaged: tuple[CheckpointFile, ...]
    lost_random: tuple[str, ...] = ()
    """Random states of ranks that are missing, without which a training resumes with other random numbers."""
    non_finite: int
    """Number of values in the files that are NaN, and of infinite ones in optimizer states."""
    non_finite_file: str
    """The first file with such a value; "" without."""
    unexamined: int
    """Number of files of tensors whose values were not examined."""
    compared: ClassComparison | None
    """The weights that from_pretrained loads, or else those of ZeRO's states beside a config.json, compared with the
    model's class; null if there are none."""
    conversion: Conversion | None
    """Null if nothing was converted."""
    written: str
    """The folder with the model; "" if none was written."""

    @property
    def lacks_weights(self) -> bool:
        """Whether a tensor of the class in config.json is missing, or has another shape."""
        return self.compared is not None and not self.compared.is_loaded


def checkpoint_document(answer: CheckpointAnswer, *, instead: Path | None = None) -> doc.Document:
    """Return the damage of newer checkpoints, what this one is, whether it is whole, and its possible uses; then
    damage, sizes and commands.

    instead: for one that must not be used, the newest usable checkpoint or folder of states of the same training."""
    contents = answer.contents
    name = printable(_named(contents))
    blocks: list[doc.Block] = [*_state(answer)]
    if instead is not None and instead.parent == Path(contents.folder):
        blocks += _load(contents, instead.name, "Other states in the folder are whole")
    elif instead is not None:
        newest = printable(_shortest(str(instead)))
        blocks.append(doc.Sentence(f"The newest whole checkpoint of the same training is {newest}."))
    if said := _saved(contents):
        blocks.append(doc.Sentence(f"Saved {said}."))
    blocks += [doc.Heading("Sizes", "sizes", printed=False), _sizes(contents)]
    if answer.conversion is None and not answer.damaged and not answer.non_finite:
        blocks += _next_steps(answer)
    verdict = f"{name}: {_kind(contents)}, {size(contents.size_bytes)}"
    if answer.newer:
        newest, *others = (f"{_base(each)} is damaged: {printable(each.problem)}." for each in answer.newer)
        advice: list[doc.Block] = [*map(doc.Sentence, others), doc.Sentence(_resume_instead(answer)), doc.Gap()]
        blocks = [*advice, doc.Sentence(verdict, "bold"), *blocks]
        return doc.Document(subject=name, verdict=newest, tone="bad", blocks=blocks, data=answer)
    return doc.Document(subject=name, verdict=verdict, tone=None, blocks=blocks, data=answer)


def _resume_instead(answer: CheckpointAnswer) -> str:
    """Return from what to resume in place of newer checkpoints. `resume_from_checkpoint=True` takes the folder
    `checkpoint-STEP` of the largest step, whole or not (transformers 5.24 trainer_utils.py `get_last_checkpoint`)."""
    newest, instead = _base(answer.newer[0]), printable(_named(answer.contents))
    if not answer.contents.resumed_by:
        return f"{instead} is the newest whole one, a model without states to resume from."
    if re.fullmatch(r"checkpoint-\d+", newest):
        return (
            f"resume_from_checkpoint=True would take {newest}. Resume with "
            f'resume_from_checkpoint="{instead}", or move {" and ".join(map(_base, answer.newer))} away.'
        )
    return f"Resume from {instead}, the newest whole one."


def _base(checkpoint: UnusableCheckpoint) -> str:
    return printable(Path(checkpoint.folder).name)


def _saved(contents: CheckpointContents) -> str:
    by = f"by DeepSpeed {printable(contents.version)}" if contents.version else ""
    of = f"with {count(contents.parameters)} parameters" if contents.parameters else ""
    return " ".join(filter(None, (by, of)))


def _kind(contents: CheckpointContents) -> str:
    if contents.is_model:
        return "adapter folder" if contents.is_adapter else "model folder"
    step = "" if contents.step is None else f", step {contents.step:,}"
    if contents.is_universal:
        return f"universal checkpoint of ZeRO-{contents.stage}{step}"
    if contents.resumed_by != "deepspeed":
        by = "Trainer" if contents.resumed_by == "trainer" else "accelerate"
        how = "" if not contents.optimizer_bytes else " of FSDP" if contents.is_fsdp else " without DeepSpeed"
        return f"{by} checkpoint{how}{step}"
    if contents.stage == "none":
        return f"checkpoint without states to resume from{step}"
    ranks = f" of {counted_noun(contents.ranks, 'rank')}" if contents.ranks else ""
    split = f", layers split by {contents.model_ranks}" if contents.model_ranks > 1 else ""
    if contents.stage == "0":
        return f"checkpoint without ZeRO{split}{step}"
    return f"ZeRO-{contents.stage} checkpoint{ranks}{split}{step}"


def _state(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    """Yield whether the values are numbers and the files whole, and then the uses."""
    contents, damaged = answer.contents, answer.damaged
    is_broken = bool(answer.non_finite) and answer.conversion is None
    lacking = None if answer.compared is None or answer.compared.is_loaded or damaged else answer.compared
    if is_broken:
        advice = "do not use it" if contents.is_model else "do not resume from it"
        yield _non_finite(answer.non_finite, answer.non_finite_file, advice)
    if damaged and not (contents.tag and is_only_latest(damaged)):
        yield from _damage(answer)
        return
    other = "every other file" if answer.lost_random else "every file"
    evidence = {
        "checksums": f"{other} equals the saved one, by its checksum",
        "structure": f"{other} was read, none is missing or cut off",
    }[answer.evidence]
    numbers = "" if answer.non_finite or answer.unexamined else "; no value is NaN"
    if lacking is not None:
        yield from _lacking(lacking, is_saved=contents.loads_weights)
    if (is_broken or lacking is not None) and not damaged:
        yield doc.Sentence(f"Its files are complete: {evidence}.")
    elif damaged and not is_broken:
        yield doc.Sentence(f"The states are whole: every file of them was read, none is missing or cut off{numbers}.")
    elif not damaged:
        yield doc.Sentence(f"Whole: {evidence}{numbers}.", "good")
    if answer.lost_random:
        them = ", ".join(map(printable, answer.lost_random[:_MOST_FILES]))
        more = len(answer.lost_random) - _MOST_FILES
        them += f" and {more} more" if more > 0 else ""
        yield doc.Sentence(f"Missing: {them}. The Trainer resumes without, with other random numbers.", "unsure")
    if answer.unexamined:
        yield doc.Sentence(f"In {counted_noun(answer.unexamined, 'file')}, the values were not examined for NaN.")
    if answer.conversion is not None:
        yield from _written(answer.written, answer.conversion)
    elif is_broken:
        return
    elif damaged:
        yield from _load(contents, contents.tag, f"`{printable(damaged[0].name)}` {printable(damaged[0].problem)}")
    else:
        yield doc.Sentence(_uses(contents, gives_weights=lacking is None))
        if answer.compared is not None and answer.compared.not_compared:
            why = ended(printable(answer.compared.not_compared))
            yield doc.Sentence(f"Whether a tensor of the model's class is missing was not checked: {why}", "unsure")
        if contents.missing_to_load:
            needed = " and ".join(contents.missing_to_load)
            yield doc.Sentence(f"from_pretrained loads its weights only with {needed}, which the folder lacks.")
        there = f"names {printable(contents.latest) or 'no tag'}"
        yield from _latest(contents, f"`{_latest_file(contents)}` {there}")


def _lacking(compared: ClassComparison, *, is_saved: bool) -> Iterator[doc.Block]:
    """Yield the tensors that `from_pretrained` does not take from the files, or that the states do not hold. is_saved:
    whether there are such files."""
    stops = "--to-hf stops at {}; is config.json that of the training?"
    for names, what, then in (
        (compared.missing, "missing", "from_pretrained would initialize {} at random" if is_saved else stops),
        (compared.reshaped, "of another shape", "from_pretrained stops at {}" if is_saved else stops),
    ):
        if names:
            are, them = ("is", "it") if len(names) == 1 else ("are", "them")
            first = printable(names[0]) if len(names) == 1 else f"the first {printable(names[0])}"
            of = f"{counted_noun(len(names), 'tensor')} of {printable(compared.name)} {are} {what}, {first}"
            yield doc.Sentence(f"{of}: {ended(then.format(them))}", "bad")


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
            f"model that the training started from{'' if done.has_config else ', if it is one of transformers'}.",
            "" if done.has_config else "unsure",
        )
    if done.repeated:
        yield doc.Sentence(
            f"{printable(done.repeated[0])} has the values of another tensor and is written too, because without the "
            "model's class it is not known whether loading ties them."
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
    damaged = answer.damaged
    use = "Do not resume from it"
    if answer.contents.is_model:
        loader = "peft's PeftModel." if answer.contents.is_adapter else "transformers' "
        use = f"{loader}from_pretrained does not load it"
    yield doc.Sentence(f"Damaged: {counted_noun(len(damaged), 'file')}. {use}.", "bad")
    yield from (doc.Sentence(f"  {printable(file.name)} {file.problem}", hang=4) for file in damaged[:_MOST_FILES])
    if len(damaged) > _MOST_FILES:
        yield doc.Sentence(f"  and {len(damaged) - _MOST_FILES} more (--json)")


def _quoted(path: str) -> str:
    return shlex.quote(printable(path))


def _named(contents: CheckpointContents) -> str:
    return _states(contents) if contents.is_tag_named else contents.folder


def _states(contents: CheckpointContents) -> str:
    return str(Path(contents.folder) / contents.tag)


def _shortest(path: str) -> str:
    """Return the path, relative to the current folder where that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def _stages(contents: CheckpointContents) -> str:
    """Return the stages that load the states."""
    return "ZeRO-1 or 2" if contents.joins_partitions else "ZeRO-3"


def _uses(contents: CheckpointContents, *, gives_weights: bool) -> str:
    """Return what one can do with an intact checkpoint. gives_weights: whether no tensor of the model's class lacks."""
    if contents.is_universal:
        return f"You can resume with {_stages(contents)} on any number of GPUs, with checkpoint.load_universal."
    weights = "adapter with PeftModel." if contents.is_adapter else "weights with "
    fsdp = " under FSDP" if contents.is_fsdp else " without DeepSpeed"
    uses = {
        f"resume{fsdp} with resume_from_checkpoint": contents.resumed_by == "trainer",
        f"resume{fsdp} with Accelerator.load_state": contents.resumed_by == "accelerate",
        "resume on any number of GPUs": contents.stage == "0",
        f"resume with {counted_noun(contents.ranks, 'rank')}": contents.has_zero_states,
        f"load its {weights}from_pretrained": contents.loads_weights and gives_weights,
        "load its weights with torch.load": contents.is_model and not contents.loads_weights,
        "export its weights": contents.can_export and gives_weights,
        "convert it for other GPUs": contents.has_zero_states and not contents.converted,
    }
    *others, last = [use for use, is_possible in uses.items() if is_possible] or ["load nothing from it"]
    lacks = " It holds no states to resume from." if contents.is_model else ""
    return f"You can {', '.join(others)}{' or ' * bool(others)}{last}.{lacks}"


def _sizes(contents: CheckpointContents) -> doc.Table:
    # Without ZeRO, the optimizer's states lie in the file of the model's (0.19.8 runtime/engine.py `_save_checkpoint`).
    weights = "model and optimizer states, weights" if contents.stage == "0" else "model states and weights"
    known = {"optimizer states": contents.optimizer_bytes, weights: contents.weights_bytes}
    parts = known | {"other files": contents.size_bytes - sum(known.values())}
    most = max(1, *parts.values())
    inks = ("optimizer", "weights", "other")
    rows = [
        doc.Row([name, doc.make_figure(part, size), doc.Meter(part / most, ink=ink)])
        for (name, part), ink in zip(parts.items(), inks, strict=True)
        if part
    ]
    return doc.Table(["", "", ""], rows, optional=(2,))


def _next_steps(answer: CheckpointAnswer) -> Iterator[doc.Block]:
    contents, compared = answer.contents, answer.compared
    if contents.is_adapter and contents.loads_weights:
        yield doc.Gap()
        yield doc.Sentence("Merge the adapters into their model:")
        yield doc.Commands([merge_command(printable(_shortest(contents.folder)))])
    if contents.can_export and not answer.lacks_weights:
        is_known = compared is not None and not compared.not_compared
        yield doc.Gap()
        yield doc.Sentence(f"Export the weights as {'a Hugging Face model' if is_known else 'safetensors'}:")
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
