"""Whether the change that `ds-advise why` proposes ends the failure: `python -m benchmarks.memory_changes`.

`data/failed_configurations.jsonl` has public trainings whose GPU memory ran out, by their threads (`source`): the
model, the GPUs, the DeepSpeed configuration, other options of the question (`assumed` names what the thread does not
state), and the `log` with its `phase`, unless `failure_logs.jsonl` has it or the thread only says that memory ran out.
For each, `why LOG --config FILE` names the first change, which is put into the file and the options, and the changed
training is run through the real engine by `ds-advise dry-run`, which must find that it fits. A configuration without a
change is counted with its reason: the log contradicts the prediction, or no single change fits.

    python -m benchmarks.memory_changes [--write] [SOURCE ...]    # about 15 s each
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_advise.advisor.text.units import gib

from .document import show
from .failure_logs import LOGS, cases

CONFIGURATIONS = LOGS.with_name("failed_configurations.jsonl")

_ARGUMENTS = {
    "per_device_train_batch_size": ("micro_batch", "train_micro_batch_size_per_gpu"),
    "gradient_accumulation_steps": ("accumulation", "gradient_accumulation_steps"),
}
"""Arguments of the Trainer that a change sets: the option, and the key of a file that has the number itself."""

_ONLY_THE_ERROR = "torch.OutOfMemoryError: CUDA out of memory.\n"
"""The log of a thread without one."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one failed training."""

    source: str
    model: str
    gpus: str
    plan: str
    phase: str
    change: str
    """The first change; what is there in place of one if it is empty."""
    fits: bool | None
    """Whether the changed training fits by the dry run; None without a change."""
    need_bytes: int | None
    """What the changed training needs per GPU, by the dry run."""
    gpu_bytes: int

    @property
    def verdict(self) -> str:
        """The last cell of the table."""
        if self.fits is None:
            return "-"
        need = "-" if self.need_bytes is None else f"{gib(self.need_bytes)} of {gib(self.gpu_bytes)} GiB"
        return need if self.fits else f"**{need}**"


def outcomes(sources: Sequence[str] = ()) -> Iterator[Outcome]:
    """Yield the outcome of each configuration, or of those of some sources."""
    logs = {case["source"]: case for case in cases()}
    for case in cases(CONFIGURATIONS):
        if not sources or case["source"] in sources:
            yield _outcome(case, case if "log" in case else logs.get(case["source"], {}))


def _outcome(case: Mapping[str, Any], logged: Mapping[str, Any]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        log, config = Path(folder, "train.log"), Path(folder, "ds_config.json")
        log.write_text(logged.get("log", _ONLY_THE_ERROR), encoding="utf-8")
        config.write_text(json.dumps(case["config"]), encoding="utf-8")
        options = {"model": case["model"], "gpus": case["gpus"], **case["options"]}
        forecast = _asked(["why", str(log), "--config", str(config)], options)["forecast"]
        known = {
            "source": case["source"],
            "model": case["model"],
            "gpus": case["gpus"],
            "plan": forecast["plan"],
            "phase": logged.get("phase", ""),
            "gpu_bytes": forecast["gpu_memory_bytes"],
        }
        if forecast["is_below_log"] or not forecast["changes"]:
            reason = "the log contradicts the prediction" if forecast["is_below_log"] else "no single change fits"
            return Outcome(**known, change=f"({reason})", fits=None, need_bytes=None)
        change = forecast["changes"][0]
        changed, options = changed_training(case["config"], options, change)
        config.write_text(json.dumps(changed), encoding="utf-8")
        try:
            found = _asked(["dry-run", str(config)], options)
        except RuntimeError as error:
            if "does not recognize this architecture" not in str(error):
                raise
            reason = "the installed transformers has no code for the model"
            return Outcome(**known, change=f"({reason})", fits=None, need_bytes=None)
        return Outcome(
            **known, change=change["what"], fits=found["fits"], need_bytes=found["required_device_bytes_per_gpu"]
        )


def changed_training(
    config: Mapping[str, Any], options: Mapping[str, Any], change: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration and the options after a change."""
    new = {name: value for name, value in (dict(config) | change["file"]).items() if name not in change["removed"]}
    asked = dict(options)
    for name, value in change["arguments"].items():
        if name in _ARGUMENTS:
            option, key = _ARGUMENTS[name]
            if isinstance(new.get(key), int):
                new[key] = value
            else:
                asked[option] = value
        elif name == "gradient_checkpointing":
            asked["gradient_checkpointing"] = "on"
        elif name == "use_liger_kernel":
            asked["loss"] = "fused"
        else:
            raise ValueError(f"no option is known for the argument {name}")
    return new, asked


def _asked(words: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The object that a command prints. Raises RuntimeError with its error if it prints none."""
    typed = [part for name, value in options.items() for part in _option(name, value)]
    command = [sys.executable, "-m", "ds_advise", *words, *typed, "--offline", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if not ended.stdout.lstrip().startswith("{"):
        raise RuntimeError(ended.stderr.strip().rpartition("\n")[2].removeprefix("ds-advise: "))
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


def table(found: Sequence[Outcome]) -> str:
    """The table of docs/why.md."""
    changed = [each for each in found if each.fits is not None]
    kinds = Counter(each.change for each in found if each.fits is None)
    others = "".join(f"; {count} {reason}" for reason, count in kinds.items())
    lines = [
        f"The change fits in {sum(each.fits or False for each in changed)} of {len(changed)} trainings{others}.",
        "",
        "| training | ran out in | change | by the dry run |",
        "|---|---|---|---|",
    ]
    for each in found:
        training = f"[{each.model}, {each.gpus}, {each.plan}]({each.source})"
        lines.append(f"| {training} | {each.phase.replace('_', ' ') or '-'} | {each.change} | {each.verdict} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; with --write also put it into docs/why.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/why.md")
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="only the trainings of these threads")
    asked = parser.parse_args()
    if asked.write and asked.sources:
        parser.error("--write needs all trainings")
    found = []
    for each in outcomes(asked.sources):
        print(f"{each.model} {each.gpus} {each.plan}: {each.change}, {each.verdict}", file=sys.stderr, flush=True)
        found.append(each)
    show("why.md", "memory_changes", table(found), writes=asked.write)


if __name__ == "__main__":
    main()
