"""Commands that are not about one training: `doctor`, `bench`, `history`, `contribute`, `checkpoint` and `page`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ...estimators.errors import ConfigFileError, DsAdviseError
from ..text.language import Language, language_of_environment
from ..text.output import Output
from ..text.units import counted_noun
from .help import GroupedCommand
from .options import (
    COUNT,
    DEBUG,
    FORCE,
    LANG,
    PATH,
    CommandWithItsWords,
    OutputFile,
    Whole,
    output_options,
    warn_ignored,
)

if TYPE_CHECKING:
    from ...probes.store import Record, Store
    from ..document.blocks import Document


@click.command(cls=GroupedCommand)
@click.option(
    "--nvme", metavar="PATH", help="Check that this swap folder is writable, and neither in RAM nor on a network drive."
)
@click.option("--hostfile", type=PATH, metavar="FILE", help="Check the nodes of this hostfile: names, ssh, port.")
@output_options
def doctor(nvme: str | None, hostfile: Path | None, output: Output) -> int:
    """Check versions, compilers, GPUs, memory limits, cores, the swap folder, variables and other nodes.

    Each line is an observation; for a fault also its effect and how to fix it. Nothing is changed. The checks need no
    torch, no GPU and no permissions.

    \b
    ds-advise doctor
    ds-advise doctor --nvme /mnt/nvme --hostfile hostfile

    Exit code: 0 without problems (there may be warnings), 1 with problems, 2 if the checks cannot be made.
    """
    from ...validate.doctor import examine
    from ..render.deliver import show_document
    from ..render.doctor import doctor_document

    checkup = examine(nvme=nvme, hostfile=hostfile)
    show_document(lambda: doctor_document(checkup), output)
    return 1 if checkup.counts["problem"] else 0


@click.command(cls=GroupedCommand)
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="Device to measure.  [default: cuda if there is a GPU]"
)
@click.option("--ranks", type=COUNT, help="Number of GPUs or CPU processes.  [default: all GPUs; 2 on the CPU]")
@click.option("--nvme", metavar="PATH", help="Measure the NVMe drive of this folder with a temporary file.")
@output_options
def bench(device: Literal["cuda", "cpu"] | None, ranks: int | None, nvme: str | None, output: Output) -> int:
    """Measure matrix products, memory, links, collectives, CPU Adam and NVMe of this machine, each with its spread.

    This takes about a minute on an idle machine, several minutes on a busy one, and longer the first time, when
    DeepSpeed compiles its extensions. Answers about this machine (--gpus auto, --device cpu) use the results of as many
    ranks instead of data sheets and assumptions.

    \b
    ds-advise bench
    ds-advise bench --nvme /mnt/nvme
    ds-advise bench --device cpu --ranks 2

    Exit code: 0, or 2 if the measurement failed.
    """
    from ...probes.benchmark import INTERRUPTED, run_benchmark
    from ...probes.machine import busy
    from ..render.deliver import show_document
    from ..render.history import bench_document

    was_busy = busy()
    with output.progress("benchmark") as on_progress:
        record = run_benchmark(
            device=device, ranks=ranks, nvme=nvme, on_task=on_progress.begin, on_progress=on_progress
        )
    show_document(lambda: bench_document(record, warning=was_busy), output)
    if any(skipped["reason"] == INTERRUPTED for skipped in record.result["skipped"]):
        raise KeyboardInterrupt
    return 0


@click.command(cls=CommandWithItsWords)
@click.argument("words", nargs=-1, metavar="[ID ... | WORD ...]")
@click.option("--forget", is_flag=True, help="Remove the records with the numbers behind it, or `all`.")
@click.option("--limit", type=COUNT, default=20, help="Maximum number of lines; --json has all records.")
@output_options
def history(words: Sequence[str], forget: bool, limit: int, output: Output) -> int:
    """List probes, benchmarks, trainings and dry runs, newest first, or show everything that is stored of one.

    ID is the number of a record; 3-5 stands for several, 3- for all from 3 on. WORD is a part of a model, a script, a
    kind, GPUs or a failure: only records with every WORD are listed.

    \b
    ds-advise history
    ds-advise history 12
    ds-advise history probe qwen
    ds-advise history --json > records.json
    ds-advise history --forget 3-5 8
    ds-advise history --forget all

    A record identifies a machine by its hardware only. Exit code: 0, or 2 if one does not exist or cannot be read.
    """
    from ...probes.store import Store
    from ..render.deliver import show_document
    from ..render.history import forgotten_document, has_words, history_document, page_document

    if "all" in words and len(words) > 1:
        raise click.UsageError("all stands for every record; write it alone, or the numbers without it")
    store, typed = Store(), click.get_current_context().obj
    numbers = [word for word in words if _is_number(word) or _range(word)]
    names = [word for word in words if word not in (*numbers, "all")]
    if numbers and names and not forget:
        from .typed_line import line  # imported here: only this mistake needs it

        records, named = line(["history", *numbers]), line(["history", *names])
        what = f"{numbers[0]} is the number of a record, and {names[0][:40]} a word that chooses some"
        raise click.UsageError(f"{what}; write {records}, or {named}")
    is_filter = not forget and "all" not in words and not numbers
    chosen = None if is_filter or "all" in words else _numbers(words, store)
    if forget:
        warn_ignored("limit", "with --forget")
        if not words:
            raise click.UsageError("--forget needs the numbers of records, or all")
        if not {*words} <= {*typed[typed.index("--forget") + 1 :]}:  # of a line that showed a record
            from .typed_line import line  # imported here: only this mistake needs it

            fix = line(["history", "--forget", *words])
            raise click.UsageError(f"the numbers to forget stand behind --forget; write {fix}")
        if chosen is not None:
            _records(store, chosen)  # raises before any is removed
        removed = store.forget("all" if chosen is None else chosen)
        show_document(lambda: forgotten_document(removed), output)
        return 0

    most = None if output.mode == "json" else limit
    found = store.find() if chosen is None else _records(store, chosen)
    if words and is_filter and found:
        found = [record for record in found if has_words(record, words)]
        if not found:
            what = f"no record has {' and '.join(repr(word[:40]) for word in words)}"
            raise DsAdviseError(
                f"{what} in its model, script, kind, GPUs or failure", fix="`ds-advise history` lists them"
            )
    older = 0 if most is None else max(0, len(found) - most)

    def document() -> Document:
        if chosen is not None and len(found) == 1:
            return page_document(found[0], path=store.path)
        return history_document(found[:most], path=store.path, older=older)

    show_document(document, output)
    return 0


@click.command(cls=GroupedCommand)
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@click.option("--model", metavar="MODEL", help="Folder with the config.json of a model that has no public name.")
@click.option(
    "-o",
    "--output",
    "file",
    type=OutputFile("measured.json"),
    metavar="FILE",
    help="Write the JSON object to this file; - is stdout.",
)
@FORCE
@output_options
def contribute(ids: Sequence[str], model: str | None, file: Path | None, force: bool, output: Output) -> int:
    """Show measured runs in the form of the published runs, to compare predictions with them.

    ID is the number of a probe or a training in `ds-advise history`; by default the newest that ran on GPUs and ended,
    or ran out of memory. A row has the model, the machine's class, the versions, the configuration, and the measured
    and predicted figures. It has no path, no name of a host or a user, and no text of a script. Nothing is sent.

    \b
    ds-advise contribute 12 13
    ds-advise contribute 12 --model ./my-model -o measured.json

    Exit code: 0, or 2 if a record is not such a run.
    """
    from ...ds_configs.files import write_text
    from ...probes.store import Store
    from ...validate.lint.installed_facts import load_facts
    from ..render.contribution import contribution_document, contribution_json
    from ..render.deliver import show_document
    from ..verification.contribution import Contribution, contributed_run

    on_stdout = file == Path("-")
    if on_stdout and output.mode == "json":
        raise click.UsageError("--json and -o - both write to stdout; leave one out")
    store = Store()
    if ids:
        numbers = [_number(text) for text in ids]
        records = sorted(_records(store, numbers), key=lambda record: numbers.index(record.id or 0))
    else:
        measured = (each for each in store.find() if each.kind in ("probe", "training") and each.ran_on_gpus)
        ended = (None, "out_of_memory")
        records = [each for each in measured if (each.result.get("failure") or {}).get("kind") in ended][:1]
    if not records:
        raise DsAdviseError("nothing was measured on GPUs yet", fix="use ds-advise probe, launch or train")
    facts = load_facts()
    found = Contribution(runs=tuple(contributed_run(record, facts, model) for record in records))
    if on_stdout:
        print(contribution_json(found), end="")
        return 0
    if file is not None:
        write_text(contribution_json(found), file, force=force)
    show_document(lambda: contribution_document(found, file="" if file is None else str(file)), output)
    return 0


def _records(store: Store, numbers: Sequence[int]) -> list[Record]:
    """The records with these numbers. Raises DsAdviseError if one does not exist."""
    found = store.find(ids=numbers)
    if missing := sorted(set(numbers) - {record.id for record in found}):
        others, fix = _ids(store), "`ds-advise history` lists them"
        if others[1:]:
            kept = f"the records are {min(others)} to {max(others)}"
        elif others:
            kept = f"the only record is {others[0]}"
        else:
            kept, fix = "nothing was measured yet", "use ds-advise bench, or ds-advise probe"
        raise DsAdviseError(f"there is no record {', '.join(map(str, missing))}", why=kept, fix=fix)
    return found


def _ids(store: Store) -> list[int]:
    """The numbers of all records."""
    return [record.id for record in store.find() if record.id is not None]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


_NEWEST = "9" * 18
"""The end of a range without one, which is no smaller than any number."""


def _range(text: str) -> tuple[int, int] | None:
    """The first and the last number of a range such as 3-5, or 3- to the newest; None for another text."""
    first, dash, last = text.partition("-")
    last = last or _NEWEST if dash else ""
    return (int(first), int(last)) if _is_number(first) and _is_number(last) else None


def _numbers(texts: Sequence[str], store: Store) -> list[int]:
    """The numbers of records; of a range those that exist. Raises DsAdviseError for another text, and for a range
    without any."""
    found = list[int]()
    known = _ids(store) if any(map(_range, texts)) else []
    for text in texts:
        if (ends := _range(text)) is None:
            found.append(_number(text))
            continue
        there = [number for number in known if ends[0] <= number <= ends[1]]
        if not there:
            to = "" if text.endswith("-") else f" to {ends[1]}"
            raise DsAdviseError(f"there is no record from {ends[0]}{to}", fix="`ds-advise history` lists them")
        found += there
    return found


def _number(text: str) -> int:
    if not _is_number(text):
        raise DsAdviseError(f"{text[:40]!r} is not the number of a record", fix="`ds-advise history` lists them")
    return int(text)


@click.command(cls=GroupedCommand)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--to-hf", type=PATH, metavar="OUT", help="Write the weights as a Hugging Face model into a new folder.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    help="Type of the written weights; auto: that of config.json.",
)
@FORCE
@output_options
def checkpoint(folder: Path, to_hf: Path | None, dtype: str, force: bool, output: Output) -> int:
    """Show the contents of a checkpoint of DeepSpeed or the Trainer, check its files, and export its weights.

    DIR holds `latest`, or is a folder of states or of a universal checkpoint; of a training's output folder, the newest
    usable checkpoint is taken, after the damage of newer ones. Archives must be complete;
    files written under `launch` or `train` must match their checksums. Where transformers is installed, the weights
    must be those of the model's class. DeepSpeed's zero_to_fp32 assembles the weights.

    \b
    ds-advise checkpoint output/checkpoint-500
    ds-advise checkpoint output/checkpoint-500 --to-hf my-model

    Exit code: 0 if it is intact, 1 if it or a newer one in DIR is damaged, if values are NaN or infinite, or if weights
    are missing, 2 if it cannot be read.
    """
    from ...estimators.json_form import from_attributes
    from ...validate.checkpoint import is_only_latest, newest_usable, read_checkpoint
    from ...validate.checkpoint_class import compare_states_with_class, compare_with_class
    from ...validate.checkpoint_contents import read_contents
    from ...validate.checkpoint_layout import checkpoint_layout, checkpoints_below, earlier_and_later, saved_states
    from ...validate.checkpoint_weights import write_model
    from ..render.checkpoint import CheckpointAnswer, UnusableCheckpoint, checkpoint_document
    from ..render.deliver import show_document

    if not to_hf:
        warn_ignored("dtype", "without --to-hf")
    if not folder.is_dir():
        from .mistaken_files import folder_instead

        raise ConfigFileError(f"{folder} is not a folder", fix=folder_instead(folder))
    newer: tuple[UnusableCheckpoint, ...] = ()
    if inside := checkpoints_below(folder):
        usable, damaged = newest_usable(inside, by_deepspeed=False, say=output.say)
        found = usable or damaged[0]
        if usable is not None:
            newer = tuple(from_attributes(UnusableCheckpoint, each, folder=str(each.folder)) for each in damaged)
        contents = read_contents(found.folder)
        output.say(f"{folder} contains {counted_noun(len(inside), 'checkpoint')}; {found.folder.name} is taken")
    else:
        contents = read_contents(folder)
        found = read_checkpoint(folder, by_deepspeed=False)
    conversion = None
    if to_hf and found.is_whole:
        conversion = write_model(contents, to_hf, dtype, force=force, say=output.say)  # type: ignore[arg-type]  # a choice
    compared = None
    model, has_weights = Path(contents.folder), contents.loads_weights and not contents.is_adapter
    # Without config.json nothing says what the model of the states is.
    has_states = contents.can_export and contents.parameters and (model / "config.json").exists()
    if (has_weights or has_states) and not found.damaged and not to_hf:
        output.say("comparing the weights with the model's class ...")
        saved = saved_states(checkpoint_layout(found.folder))
        compared = compare_with_class(model) if has_weights else compare_states_with_class(model, saved)
    answer = CheckpointAnswer(
        newer=newer,
        compared=compared,
        contents=contents,
        evidence=found.evidence,
        damaged=found.damaged,
        lost_random=found.lost_random,
        non_finite=found.non_finite,
        non_finite_file=found.non_finite_file,
        unexamined=found.unexamined,
        conversion=conversion,
        written="" if conversion is None else str(to_hf),
    )
    instead: Path | None = None
    if found.non_finite or not is_only_latest(found.damaged):
        others = [] if inside else earlier_and_later(folder)
        for among in (checkpoint_layout(found.folder).other_states, others):
            if usable := newest_usable(among, by_deepspeed=False, say=output.say)[0]:
                instead = usable.folder
                break
    show_document(lambda: checkpoint_document(answer, instead=instead), output)
    is_broken = found.damaged or found.non_finite or (conversion and conversion.non_finite)
    return 1 if is_broken or newer or answer.lacks_weights else 0


@click.command(cls=GroupedCommand)
@click.option("--build", "folder", type=PATH, metavar="DIR", help="Build a static page, which works offline.")
@click.option(
    "--pyodide", type=PATH, metavar="FILE", help="Pyodide's npm package or folder.  [default: npm fetches it]"
)
@click.option(
    "--port", type=Whole(0, 65535), help="Port of the server; 0: any free port.  [default: 8737 if it is free]"
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@LANG
@DEBUG
def page(
    folder: Path | None, pyodide: Path | None, port: int | None, no_browser: bool, language: Language | None
) -> int:
    """Open a page that updates the advice as GPUs, sequence, batch and RAM change.

    \b
    On this machine    ds-advise page
    For a web server   ds-advise page --build site

    Exit code: 0, or 2 if the page cannot be opened or built.
    """
    if folder is not None:
        from ..page.build import MEMORY, build_page

        files = build_page(folder, pyodide=pyodide)
        size = sum(file.stat().st_size for file in files) / 1e6
        click.echo(f"Built {folder}: {len(files)} files, {size:.1f} MB.")
        if not any(file.name == MEMORY for file in files):
            click.echo(
                "Node is missing or could not run Pyodide: each visit then imports everything, which takes seconds."
            )
        click.echo(f"Open it: python3 -m http.server --directory {folder} 8000, then http://localhost:8000")
        return 0
    if pyodide is not None:
        raise click.UsageError("--pyodide needs --build")
    from ..page.serve import page_server

    with page_server(port, language or language_of_environment()) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        click.echo(f"The page is at {address} until you press Ctrl-C.")
        if not no_browser:
            click.launch(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()
    return 0
