"""The moving picture of the README: three commands as they run in a terminal.

    python -m benchmarks.screen_cast    # writes docs/pictures/screen_cast.svg, takes two minutes

tmux runs the commands of `SCENES` in a folder with the files of the documents, and its screen is read six times a
second. Every screen that differs from the one before it is a frame of an SVG that CSS animates, so that it plays where
a page shows the picture, without a script. The first frame is the answer, and the only one where CSS is not animated.
Waits are shortened: a frame stays for at most `_LONGEST_S`, and of a command that runs longer than `_SCENE_S` only
every n-th screen is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby
from pathlib import Path

from rich.ansi import AnsiDecoder

from .manual_site import spans, terminal_colours
from .shown_output import ROOT, make_files

PICTURE = ROOT / "docs" / "pictures" / "screen_cast.svg"
COLUMNS, ROWS = 120, 46
_WHOLE = 120
"""Rows of tmux's screen, on which every command's output has room; the picture shows its begin, then its end."""

_TRAIN = """\
import torch
from transformers import HfArgumentParser, Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = Qwen2ForCausalLM(Qwen2Config(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, vocab_size=4096))
tokens = torch.randint(4096, (768, 256)) % torch.arange(2, 258)
rows = [{"input_ids": row, "labels": row} for row in tokens]
Trainer(model, arguments, train_dataset=rows).train()
"""
"""A script that trains on two CPU ranks in less than a minute."""

_CONFIG = {
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 50_000_000},
}
"""Its configuration, with the bucket that ds-advise writes. DeepSpeed's default of 500 million elements is larger than
the model: a dry run counts it whole, 3.7 GiB for both ranks, and a CPU gives memory only to what is written."""

_ON_CPU = (
    "--deepspeed tiny.json --per_device_train_batch_size 4 --max_steps 30 --logging_steps 2 --report_to none "
    "--output_dir out"
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A command, and how long its output stays."""

    command: str
    """As it is typed."""
    hold_s: float


SCENES = (
    Scene(command="ds-advise Qwen2.5-14B --gpus 2x32GB", hold_s=7),
    Scene(
        command="ds-advise dry-run --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py --deepspeed zero3.json --bf16 "
        "--gradient_checkpointing",
        hold_s=4,
    ),
    Scene(
        command=f"ds-advise launch --device cpu -- torchrun --nproc_per_node 2 tiny.py {_ON_CPU}",
        hold_s=6,
    ),
)

_PER_SECOND = 6
_LONGEST_S = 0.9
_SCENE_S = 8
_WORD_S = 0.12
"""Seconds between the words of a command that is typed."""
_LIMIT_S = 240
_FONT, _WIDTH, _HEIGHT, _PAD = 13, 7.83, 15, 14
"""Font size, advance of a character, height of a line and margin in units of the picture."""
Screen = tuple[str, ...]
"""Lines as SVG."""


def frames(scene: Scene, folder: Path) -> Iterator[tuple[float, Screen]]:
    """Run a command in tmux, and yield its screens with the seconds that each is shown."""
    words = scene.command.split(" ")
    for count in range(1, len(words) + 1):
        yield _WORD_S, _drawn(_typed(" ".join(words[:count])))
    seen = [*_screens(scene.command, folder)]
    # Every n-th screen, so that the scene takes at most `_SCENE_S` however long the command ran.
    every = max(1, round(len(seen) / (_SCENE_S * _PER_SECOND)))
    for screen, same in groupby(seen[::every]):
        yield min(len([*same]) / _PER_SECOND, _LONGEST_S), screen
    last = seen[-1]
    yield scene.hold_s, last
    if len(last) > ROWS:  # as one scrolls
        yield scene.hold_s, last[-ROWS:]


def _typed(command: str) -> str:
    line = f"$ {command}"
    return "\x1b[1m" + "\n".join(line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)) + "\x1b[0m"


def _drawn(screen: str) -> Screen:
    # A style that tmux does not end with its line goes on in the next one, as in the decoder.
    return tuple(spans(line, "tspan") for line in AnsiDecoder().decode(screen))


def _screens(command: str, folder: Path) -> Iterator[Screen]:
    """Yield the screen `_PER_SECOND` times a second until the command ends."""
    (folder / "typed").write_text(_typed(command) + "\n")
    end = folder / "ended"
    end.unlink(missing_ok=True)
    tmux = ["tmux", "-L", f"cast-{os.getpid()}"]
    shell = f"tmux set status off; clear; cat typed; {command}; touch ended; sleep 60"
    size = ["-x", str(COLUMNS), "-y", str(_WHOLE)]
    subprocess.run(
        [*tmux, "-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", shell],
        cwd=folder,
        env=_environment(folder),
        check=True,
    )
    started = time.monotonic()
    try:
        is_over = False
        while not is_over:
            is_over = end.exists()
            if time.monotonic() - started > _LIMIT_S:
                sys.exit(f"{command} did not end in {_LIMIT_S} s")
            time.sleep(1 / _PER_SECOND)
            captured = subprocess.run([*tmux, "capture-pane", "-p", "-e"], capture_output=True, text=True, check=True)
            yield _drawn(captured.stdout.rstrip("\n"))
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def _environment(folder: Path) -> dict[str, str]:
    """Return variables with a `ds-advise` that runs this checkout, and a store of measurements for the pictures."""
    place = folder / ".bin"
    place.mkdir(exist_ok=True)
    file = place / "ds-advise"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m ds_advise "$@"\n')
    file.chmod(0o755)
    own = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ADVISE_CACHE": str(folder / ".cache"),
    }
    return {**os.environ, **own}


def svg(shown: Sequence[tuple[float, Screen]]) -> str:
    """Return the picture: each frame is visible in its part of the period; equal lines are drawn once."""
    period = sum(seconds for seconds, _ in shown)
    ids: dict[str, str] = {}
    drawn, rules, begin = list[str](), list[str](), 0.0
    for number, (seconds, screen) in enumerate(shown):
        uses = "".join(
            f'<use href="#{ids.setdefault(line, f"l{len(ids)}")}" y="{_PAD + _HEIGHT * (at + 1) - 4}"/>'
            for at, line in enumerate(screen[:ROWS])
            if line.strip()
        )
        drawn.append(f'<g id="f{number}">{uses}</g>')
        first, last = (100 * each / period for each in (begin, begin + seconds))
        rules.append(
            f"#f{number}{{visibility:hidden;animation:k{number} {period:.1f}s step-end infinite}}"
            f"@keyframes k{number}{{0%{{visibility:{'visible' if number == 0 else 'hidden'}}}"
            f"{first:.3f}%{{visibility:visible}}{last:.3f}%{{visibility:hidden}}}}"
        )
        begin += seconds
    lines = "".join(f'<text id="{name}" x="{_PAD}" xml:space="preserve">{line}</text>' for line, name in ids.items())
    width, height = round(COLUMNS * _WIDTH + 2 * _PAD), ROWS * _HEIGHT + 2 * _PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape("; ".join(scene.command for scene in SCENES))}">\n'
        f"<style>{_STYLE}{''.join(rules)}</style>\n<defs>{lines}</defs>\n"
        f'<rect width="100%" height="100%" rx="8" class="paper"/>\n{"".join(drawn)}\n</svg>\n'
    )


_STYLE = (
    f"text{{font:{_FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6e9ed}}"
    ".paper{fill:#15181d}.term-bold{font-weight:700}"
    + "".join(f".{name}{{fill:{colour}}}" for name, colour in terminal_colours().items())
)


def main() -> None:
    if not shutil.which("tmux"):
        sys.exit("this needs tmux (Debian: apt-get install tmux)")
    folder = Path(tempfile.gettempdir(), "run")  # the picture shows its name
    folder.mkdir()
    try:
        make_files(folder)
        (folder / "ds_config.json").unlink()
        (folder / "tiny.py").write_text(_TRAIN)
        (folder / "tiny.json").write_text(json.dumps(_CONFIG))
        # The training in the picture runs on this machine's CPU, whose speed no data sheet has.
        subprocess.run(["ds-advise", "bench", "--device", "cpu", "--quiet"], env=_environment(folder), check=True)
        answer, *others = ([*frames(scene, folder)] for scene in SCENES)
    finally:
        shutil.rmtree(folder)
    begin = next(at for at, (seconds, _) in enumerate(answer) if seconds == SCENES[0].hold_s)
    shown = [*answer[begin:], *chain.from_iterable(others), *answer[:begin]]
    PICTURE.write_text(svg(shown), encoding="utf-8")
    print(f"{len(shown)} frames, {sum(seconds for seconds, _ in shown):.0f} s")


if __name__ == "__main__":
    main()
