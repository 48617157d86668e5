"""Commands about this machine and its files: `doctor`, `bench`, `checkpoint` and `page`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ...estimators.errors import ConfigFileError
from ..text.language import Language, language_of_environment
from ..text.output import Output
from ..text.units import counted_noun
from .help import GroupedCommand
from .options import COUNT, DEBUG, FORCE, LANG, PATH, Whole, output_options, warn_ignored


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
