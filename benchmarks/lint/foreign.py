"""Lint against the real engine over configurations that other projects train with.

    python -m benchmarks.lint.foreign            # about two minutes of CPU
    python -m benchmarks.lint.foreign --write    # writes the engine's verdicts down

`benchmarks/data/foreign_configs.jsonl` holds one configuration a line, with the repository and the path where its
original stands, and that repository's licence. None is a copy: each was written anew in its original's shape, with the
same keys, the same names of optimizers, devices and stages and the same batch sizes, but without its text and with a
round number of the same size and type for every other number; what stands below a feature that DeepSpeed removed is
left out. Those that are no JSON keep what makes them none. `ranks` is the number of GPUs that the batch sizes are made
for, 2 where they leave it open. `engine` is what the engine did with it, in the DeepSpeed that the first line names.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.lint import DeepSpeedFacts, lint, load_facts, read_document

from benchmarks.lint.engine import EngineQuestion, answers

if TYPE_CHECKING:
    from ds_advise.estimators.workload import Framework

FILE = Path(__file__).parents[1] / "data" / "foreign_configs.jsonl"


@dataclass(frozen=True, kw_only=True)
class ForeignConfig:
    """One line of the file."""

    repository: str
    path: str
    licence: str
    framework: Framework
    ranks: int
    config: Any
    """The settings, or the file's text where it is not JSON."""
    engine: str = ""
    """"" where it runs, else the phase in which the engine refused it and the exception's class."""
    only_read: str = ""
    """Why the simulated GPU cannot run it; then `DeepSpeedConfig` alone has judged it."""

    @property
    def text(self) -> str:
        return self.config if isinstance(self.config, str) else json.dumps(self.config)

    def lint_errors(self, facts: DeepSpeedFacts) -> tuple[str, ...]:
        """Lint's errors, "code: what", judged for its reader and its ranks as `ds-advise lint` judges it."""
        try:
            document = read_document(self.text.encode(), name=self.path)
        except ConfigFileError as error:
            return (str(error),)
        nodes = self.ranks // 8 if self.ranks % 8 == 0 else 1
        settings = lint_settings(
            document.value,
            framework=self.framework,
            model=None,
            gpus=f"{nodes}x{self.ranks // nodes}xA100-80GB",
            ram=None,
            seq_len=None,
            offline=True,
        )
        found = lint(document, facts=facts, **settings).findings
        return tuple(f"{each.code}: {each.what}" for each in found if each.severity == "error")


def read_configs() -> tuple[str, list[ForeignConfig]]:
    """The version of DeepSpeed whose verdicts stand in the file, and its configurations."""
    first, *lines = FILE.read_text(encoding="utf-8").splitlines()
    return str(json.loads(first)["deepspeed"]), [ForeignConfig(**json.loads(line)) for line in lines]


def engines_verdicts(configs: list[ForeignConfig]) -> list[str]:
    """The phase and the exception's class for each that the engine refuses, "" for one that it runs."""
    verdicts = answers(
        [
            EngineQuestion(
                config=each.config, world_size=each.ranks, framework=each.framework, only_read=bool(each.only_read)
            )
            for each in configs
        ]
    )
    return [": ".join(words.split(": ")[:2]) for words in verdicts]


def main() -> None:
    from deepspeed import __version__

    facts, (_, configs) = load_facts(), read_configs()
    judged = [replace(each, engine=verdict) for each, verdict in zip(configs, engines_verdicts(configs), strict=True)]
    if sys.argv[1:] == ["--write"]:
        rows = [{"deepspeed": __version__}, *(_row(each) for each in judged)]
        FILE.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8")
    errors = [each.lint_errors(facts) for each in judged]
    print(
        f"{len(judged)} configurations of {len({each.repository for each in judged})} repositories: "
        f"DeepSpeed {__version__} refuses {sum(bool(each.engine) for each in judged)}, lint {sum(map(bool, errors))}; "
        f"{sum(bool(each.only_read) for each in judged)} were read only"
    )
    different = [(each, found) for each, found in zip(judged, errors, strict=True) if bool(each.engine) != bool(found)]
    for each, found in different:
        print(f"{each.repository} {each.path}\n    engine: {each.engine or 'runs'}\n    lint: {'; '.join(found)}")
    raise SystemExit(bool(different))


def _row(each: ForeignConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(each).items() if value != ""}


if __name__ == "__main__":
    main()
