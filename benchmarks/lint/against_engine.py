"""Lint against the real engine over random configurations.

    python -m benchmarks.lint.against_engine [COUNT] [SEED]     # 300 by default, about 0.3 s of CPU each

Two ways to disagree: the engine refuses what lint calls free of errors (missed), and the engine runs what lint calls an
error (false alarm).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.validate.lint import DeepSpeedFacts, lint, load_facts, read_document
from ds_advise.validate.lint.rules_keys import IGNORED_KEYS

from benchmarks.lint.engine import WORLD_SIZE, outcomes
from benchmarks.lint.random_configs import random_configs

UNFIT = ("InductorError", "Autocast", "SuperOffload only supports", "client provided optimizer")
"""What only the simulated GPU cannot do, after the configuration was accepted; and the optimizer that the dry run
brings where the configuration has none, which is torch's unless `offload_optimizer` asks for another."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One configuration: why the engine refused it ("" where it ran), and lint's errors, "code: what"."""

    config: dict[str, Any]
    refused: str
    errors: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return bool(self.refused) == bool(self.errors)


def compare(count: int, seed: int, facts: DeepSpeedFacts) -> list[Comparison]:
    """`count` random configurations, judged by both."""
    configs = random_configs(count, seed, facts)
    refusals = ["" if any(word in outcome for word in UNFIT) else outcome for outcome in outcomes(configs)]
    return [
        Comparison(config=config, refused=refused, errors=errors(config, facts))
        for config, refused in zip(configs, refusals, strict=True)
    ]


def errors(config: dict[str, Any], facts: DeepSpeedFacts) -> tuple[str, ...]:
    """Lint's errors for a configuration on the engine's number of GPUs, without keys that the engine ignores: a
    misspelled block is an error, and it trains without the block."""
    document = read_document(json.dumps(config).encode(), name="x")
    settings = lint_settings(
        config, framework="deepspeed", model=None, gpus=f"{WORLD_SIZE}xA100-80GB", ram=None, seq_len=None, offline=True
    )
    return tuple(
        f"{finding.code}: {finding.what}"
        for finding in lint(document, facts=facts, **settings).findings
        if finding.severity == "error" and (finding.code not in IGNORED_KEYS or finding.code == "DS012")
    )


def main() -> None:
    count, seed = map(int, [*sys.argv[1:3], *("300", "0")[len(sys.argv) - 1 :]][:2])
    found = compare(count, seed, load_facts())
    refused = sum(bool(case.refused) for case in found)
    print(f"{count} configurations: the engine refused {refused} and ran {count - refused}")
    for title, cases in (
        ("missed", [case for case in found if case.refused and not case.errors]),
        ("false alarms", [case for case in found if case.errors and not case.refused]),
    ):
        print(f"{title}: {len(cases)}")
        for case in cases:
            print(f"  {json.dumps(case.config)}")
            print(f"    engine: {case.refused[:300] or 'runs'}\n    lint: {'; '.join(case.errors)}")
    raise SystemExit(any(not case.agrees for case in found))


if __name__ == "__main__":
    main()
