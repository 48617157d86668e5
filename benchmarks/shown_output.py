"""What the documents show of the program's output, as the program really prints it, its colours, and the picture of the
README.

    python -m benchmarks.shown_output            # exit 1 when something is stale
    python -m benchmarks.shown_output --write    # bring it up to date

A block that starts with `$ ` shows what that command prints in 80 columns, in a folder with the files of `make_files`.
A block that starts with `# NAME.py` is one of these files.
A line of dots stands for lines that are left out, and a block that starts with dots shows more of the command before
it. Lines between dots are found again by their first and last line, whatever the figures are now. A block whose first
or last line is no longer printed is left alone and named, because a person has to read it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from pathlib import Path

from ds_advise.advisor.question import options
from ds_advise.estimators.models import catalogue

from .document import put
from .manual_site import COLOURS

ROOT = Path(__file__).resolve().parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
DOCUMENTS = (*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
PICTURES = {"en": ROOT / "docs" / "pictures" / "memory.svg", "zh": ROOT / "docs" / "pictures" / "memory.zh.svg"}
"""The chart of each README by its language."""
QUESTION = ("Qwen2.5-14B", "--gpus", "2x32GB")
DOTS = "..."
_CONFIGURATION = re.compile(r"- `(\w+\.json)` is `(\{.*\})`")
"""A configuration in docs/own-script.md."""

_TERMINAL = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")} | {
    "FORCE_COLOR": "1",
    "TERM": "xterm",
}
_STARTS = ("ds-advise", "python3?", "bash", "pip")
_ALIKE = 0.75
"""Least likeness, figures apart, of a line and its successor."""
_LOG = """\
  0%|          | 0/500 [00:00<?, ?it/s]
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/ann/train.py", line 12, in <module>
[rank3]:     trainer.train()
[rank3]:   File "/venv/lib/python3.12/site-packages/transformers/trainer.py", line 2674, in _inner_training_loop
[rank3]:     tr_loss_step = self.training_step(model, inputs, num_items_in_batch)
[rank3]:   File "/venv/lib/python3.12/site-packages/transformers/trainer.py", line 4071, in training_step
[rank3]:     self.accelerator.backward(loss, **kwargs)
[rank3]:   File "/venv/lib/python3.12/site-packages/accelerate/utils/deepspeed.py", line 281, in backward
[rank3]:     self.engine.backward(loss, **kwargs)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.94 GiB. GPU 3 has a total capacity of \
23.64 GiB of which 312.00 MiB is free. Including non-PyTorch memory, this process has 23.33 GiB memory in use. Of the \
allocated memory 22.10 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated.
E1203 12:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 3
"""
"""The log of a training that ran out of memory."""
_FOREIGN_EXAMPLES = ROOT / "tests" / "advisor" / "importers" / "examples" / "LLaMA-Factory" / "examples"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Lines of a document that stand apart as code."""

    document: str
    first: int
    """Where they begin, from 0."""
    lines: tuple[str, ...]
    asked: str = ""
    """The command whose output they show; "" where they show none."""

    @property
    def commands(self) -> list[str]:
        """Without prompt and comment."""
        asked = [line for line in self.lines if line.startswith("$ ")] or list(self.lines)
        words = [line.removeprefix("$ ").partition(" #")[0].strip() for line in asked]
        return [line for line in words if re.match(rf"(\w+=\S+ )*({'|'.join(_STARTS)}) ", line)]

    @property
    def file(self) -> str:
        """Name of the script that the block is; "" if it is none."""
        found = re.fullmatch(r"# (\w+\.py)", self.lines[0])
        return found[1] if found else ""

    @property
    def is_python(self) -> bool:
        return not self.file and any(re.match(r"(from|import) ", line) for line in self.lines)

    @property
    def is_whole(self) -> bool:
        """Whether all of the output is shown."""
        return self.lines[0].startswith("$ ") and not any(line.strip() == DOTS for line in self.lines)

    @property
    def parts(self) -> list[tuple[int, tuple[str, ...]]]:
        """The lines between dots, and at which line of the block each part begins and ends with more than a blank."""
        left_out = [at for at, line in enumerate(self.lines) if line.strip() == DOTS or line.startswith("$ ")]
        found: list[tuple[int, tuple[str, ...]]] = []
        for begin, end in pairwise([*left_out, len(self.lines)]):
            spoken = [at for at in range(begin + 1, end) if self.lines[at]]
            if spoken:
                found.append((spoken[0], self.lines[spoken[0] : spoken[-1] + 1]))
        return found


def blocks(document: Path) -> Iterator[Block]:
    """Fenced ones, and those of four spaces that follow an empty line."""
    lines = [*document.read_text(encoding="utf-8").splitlines(), "end"]
    name, asked = str(document.relative_to(ROOT)), ""
    found: list[str] = []
    fenced = False
    for at, (before, line) in enumerate(zip(["", *lines], lines, strict=False)):
        if fenced and not line.startswith("```"):
            found.append(line)
        elif (line.startswith("    ") and (found or not before)) or (found and not line):
            found.append(line[4:])
        else:
            if found:
                if found[0].startswith("$ "):
                    asked = found[0].removeprefix("$ ")
                shows = found[0].startswith("$ ") or found[0] == DOTS
                yield Block(document=name, first=at - len(found), lines=tuple(found), asked=asked if shows else "")
            found = []
            fenced = line.startswith("```") and not fenced


def make_files(folder: Path) -> None:
    """The files that the documents speak of."""
    cpu = {"device": "cpu"}
    config = {
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    tiny = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 256,
    }
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    net = next(block for document in DOCUMENTS for block in blocks(document) if "class Net" in " ".join(block.lines))
    for name, text in (
        ("ds_config.json", json.dumps(config, indent=2)),
        ("old.json", json.dumps(config | {"zero_optimization": {"stage": 2}})),
        ("net.py", "\n".join(net.lines)),
        ("cifar.json", '{"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam", "params": {}}}'),
        ("chats.jsonl", json.dumps(chat) + "\n"),
        *_CONFIGURATION.findall((ROOT / "docs/own-script.md").read_text(encoding="utf-8")),
        *scripts().items(),
        ("train.log", _LOG),
        ("make_config.py", f"import json; print(json.dumps({config | {'fp16': {'enabled': False}}}))"),
    ):
        (folder / name).write_text(text)
    shutil.copytree(_FOREIGN_EXAMPLES, folder / "examples")
    for name in ("Qwen2.5-1.5B", "tiny", "model"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(tiny))
    (folder / "Qwen2.5-1.5B" / "model.safetensors").touch()  # a training would start from it
    _make_model_and_texts(folder)


@cache
def scripts() -> dict[str, str]:
    """The scripts that the documents contain, by name."""
    found = (block for document in DOCUMENTS for block in blocks(document) if block.file)
    return {block.file: "\n".join(block.lines) + "\n" for block in found}


def _make_model_and_texts(folder: Path) -> None:
    """A model without weights, with a tokenizer of one word, and texts of 101 to 3,100 words."""
    model, texts = folder / "Qwen2.5-7B", folder / "texts"
    model.mkdir()
    texts.mkdir()
    (model / "config.json").write_text(json.dumps(catalogue.config(catalogue.find(model.name).name)))
    end, *parts = "<|endoftext|>", "w", "o", "r", "d", "\u0120", "wo", "rd", "word", "\u0120word"
    merges = [["w", "o"], ["r", "d"], ["wo", "rd"], ["\u0120", "word"]]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": end, "special": True, **flags}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {word: at for at, word in enumerate([end, *parts])}, "merges": merges},
    }
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": end, "pad_token": end}
    (model / "tokenizer_config.json").write_text(json.dumps(named))
    rows = ({"text": "word" + " word" * (100 + number * 7919 % 3000)} for number in range(1000))
    (texts / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lacks(command: str) -> str:
    """The package that a command needs and that the first Python of PATH lacks; "" if there is none."""
    text = " ".join([command, *(text for name, text in scripts().items() if name in command.split())])
    there = Path(shutil.which("python") or sys.executable).with_name("trl")
    return "trl" if re.search(r"\btrl\b", text) and not there.exists() else ""


def printed(command: str) -> tuple[str, ...]:
    """The lines that a command prints, as plain text."""
    return tuple(map(_plain, coloured(command)))


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()


@cache
def coloured(command: str) -> tuple[str, ...]:
    """The lines that a command prints, with the escape codes of a terminal; it finds no configuration of before."""
    words = shlex.split(command)
    variables = dict(
        word.split("=", 1) for word in words[: next(at for at, word in enumerate(words) if "=" not in word)]
    )
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        if "ds_config.json" not in command:
            Path(folder, "ds_config.json").unlink()
        output = subprocess.run(
            [sys.executable, "-m", "ds_advise", *words[len(variables) + 1 :]],
            cwd=folder,
            text=True,
            capture_output=True,
            env=_TERMINAL | {"COLUMNS": "80", "CUDA_VISIBLE_DEVICES": "", **variables},
        ).stdout
    return tuple(output.strip("\n").splitlines())


def refreshed(block: Block, output: Sequence[str]) -> list[str] | None:
    """The block's lines as they are printed today; None where a line at an end of a part is printed no more."""
    if block.is_whole:
        return [block.lines[0], *output]
    lines, begin = list(block.lines), 0
    replaced: list[tuple[int, int, Sequence[str]]] = []
    for at, part in block.parts:
        first = _successor(part[0], output, begin)
        last = None if first is None else first if len(part) == 1 else _successor(part[-1], output, first)
        if first is None or last is None:
            return None
        replaced.append((at, len(part), output[first : last + 1]))
        begin = last + 1
    for at, length, today in reversed(replaced):
        lines[at : at + length] = today
    return lines


def _successor(line: str, output: Sequence[str], begin: int) -> int | None:
    """Where the line that is most like it stands, from `begin` on."""
    if line in output[begin:]:
        return output.index(line, begin)
    likeness = [SequenceMatcher(None, _wording(line), _wording(each)).ratio() for each in output[begin:]]
    best = max(likeness, default=0.0)
    return begin + likeness.index(best) if best >= _ALIKE else None


def _wording(line: str) -> str:
    """A line without its figures, and without the mark of the plan that is recommended."""
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,.x]*", "0", line.lstrip(" >")))


def colours(fresh: Iterable[str], old: Mapping[str, str]) -> dict[str, str]:
    """The lines of the console blocks of the manual that have a colour, plain -> with escape codes.

    fresh: lines with escape codes of the commands that ran. old: the lines of the others.
    """
    manual = (block for document in DOCUMENTS if document.parent.name == "docs" for block in blocks(document))
    shown = {line for block in manual if block.asked for line in block.lines}
    found = {**old, **{_plain(line): line for line in fresh}}
    return {plain: line for plain, line in sorted(found.items()) if plain in shown and plain != line.rstrip()}


def picture(language: str) -> str:
    """The picture, drawn again."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "memory.svg")
        options = ["--no-write", "--quiet", "--lang", language, "--plot", str(drawn)]
        command = [sys.executable, "-m", "ds_advise", *QUESTION, *options]
        subprocess.run(command, check=True)
        return drawn.read_text(encoding="utf-8")


def option_table() -> str:
    """The options of a question, for docs/asking.md."""
    rows = ["| option | meaning |", "|---|---|"]
    for title, group in options.GROUPS.items():
        rows.append(f"| **{title}** | |")
        for option in (options.OPTIONS[name] for name in options.names_in(group)):
            number = ["N"] if option.kind.startswith("count") else []
            values = option.metavar or "|".join([*number, *option.choices])
            flag = f"{option.flag} {values}".rstrip().replace("|", "\\|")
            rows.append(f"| `{flag}` | {option.text} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    write, stale, asked = "--write" in sys.argv, [], set[str]()
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        lines = text.splitlines()
        for block in reversed([block for block in blocks(document) if block.asked]):
            if missing := lacks(block.asked):
                print(f"{block.document}, line {block.first + 1}: not compared, {missing} is not installed")
                continue
            asked.add(block.asked)
            today = refreshed(block, printed(block.asked))
            if today is None or (not write and tuple(today) != block.lines):
                why = "a line at its beginning or end is printed no more" if today is None else "it is stale"
                stale.append(f"{block.document}, line {block.first + 1}: {why}")
            elif write:
                lines[block.first : block.first + len(block.lines)] = today
        if write:
            document.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before = json.loads(COLOURS.read_text(encoding="utf-8"))
    after = colours((line for command in asked for line in coloured(command)), before)
    if write:
        COLOURS.write_text(json.dumps(after, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    elif after != before:
        stale.append(f"{COLOURS.name}: it is stale")
    asking = ROOT / "docs" / "asking.md"
    if write:
        put("asking.md", "shown_output", option_table())
    elif option_table() not in asking.read_text(encoding="utf-8"):
        stale.append("docs/asking.md: the table of options is stale")
    for language, path in PICTURES.items():
        drawn = picture(language)
        if write:
            path.write_text(drawn, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != drawn:
            stale.append(f"{path.name}: it is stale")
    if stale:
        sys.exit("\n".join(stale))


if __name__ == "__main__":
    main()
