"""Whether the memory that an answer states for a plan agrees with its verdict, wherever it is printed.

    python -m benchmarks.search.need_and_verdict

A grid of questions is asked through the command line. Of every plan that is predicted, one that "fits" or "likely fits"
must need no more of the GPU than there is; the screen in English and in Chinese, Markdown and HTML must say the figures
of the JSON; and `explain` must take the recommended plan apart into the same. Exit 1 where something disagrees.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from click.testing import CliRunner
from ds_advise.advisor.cli.main import program
from ds_advise.advisor.text.units import gib

MODELS = ("Qwen2.5-1.5B", "llama3.1-8b", "Qwen2.5-32B")
GPUS = ("1x24GB", "2x32GB", "8x40GB", "8xA100-80GB")
METHODS = ("full", "lora", "qlora")
LENGTHS = ("512", "4096")
SOFTWARE = ("expandable-segments=yes", "expandable-segments=no")

HOLDS = ("fits", "likely fits")


def questions() -> Iterator[list[str]]:
    """Every question of the grid, as words of a command line."""
    for model, gpus, method, length, software in product(MODELS, GPUS, METHODS, LENGTHS, SOFTWARE):
        yield [model, "--gpus", gpus, "--method", method, "--seq-len", length, "--software", software, "--offline"]


def asked(words: Iterable[str]) -> str:
    """What the command prints."""
    done = CliRunner().invoke(program, list(words), env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def disagreements(question: list[str]) -> tuple[list[str], Counter[str]]:
    """What disagrees in the answers to one question, and its plans by verdict."""
    advise = ["advise", *question, "--no-write"]
    answer = json.loads(asked([*advise, "--all", "--json"]))
    offer = answer["cluster"]["gpu_memory_bytes"]
    wrong = [
        f"{plan['strategy']} {plan['verdict']} with {plan['device_bytes_per_gpu']} of {offer} bytes"
        for plan in answer["candidates"]
        if plan["verdict"] in HOLDS and plan["device_bytes_per_gpu"] > offer
    ]
    shown = answer["recommended"] or answer["try_first"]
    if shown is not None:
        need, have = gib(shown["device_bytes_per_gpu"]), gib(offer)
        for name, text in _texts(advise).items():
            if not re.search(rf"(?<![\d.]){re.escape(need)}(?![\d.])", text):
                wrong.append(f"{name} does not say {need} GiB")
            wrong += [f"{name} says {each} of {have} GiB" for each in _needs(text, have) if each > float(have)]
        if answer["recommended"]:
            apart = json.loads(asked(["explain", *question, "--json"]))
            if apart["device_bytes_per_gpu"] != shown["device_bytes_per_gpu"]:
                wrong.append("explain has another figure")
    return wrong, Counter(plan["verdict"] for plan in answer["candidates"])


def _texts(advise: list[str]) -> dict[str, str]:
    """The answer as it is read."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        return {
            "the screen": asked([*advise, "--html", str(page)]),
            "the screen in Chinese": asked([*advise, "--lang", "zh"]),
            "Markdown": asked([*advise, "--markdown"]),
            "HTML": page.read_text(encoding="utf-8"),
        }


def _needs(text: str, have: str) -> list[float]:
    """The figures printed as parts of the GPU's memory, for a plan that is recommended."""
    verdict = " ".join(line for line in text.splitlines() if " needs " in line or "probably fits" in line)
    return [float(found) for found in re.findall(rf"([\d.]+) of {re.escape(have)} GiB", verdict)]


def main(chosen: Iterable[list[str]]) -> int:
    verdicts: Counter[str] = Counter()
    count = failures = 0
    for question in chosen:
        wrong, found = disagreements(question)
        verdicts += found
        count += 1
        failures += len(wrong)
        for words in wrong:
            print(f"{' '.join(question)}: {words}", flush=True)
    listed = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in sorted(verdicts))
    print(f"{count} questions, {verdicts.total()} plans ({listed}): {failures} disagreements")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(questions()))
