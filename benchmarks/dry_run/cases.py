"""The plans on which the closed form is compared with the dry run: a full grid, and settings that the grid does not
vary.

`data/dry_run_cases.json` has groups of cases by name, and `data/families.json` the models. An entry of a group
describes all combinations of the fields that are lists; the dictionaries of its list `together` are fields that vary
together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

from ds_advise.estimators.plan import Strategy
from ds_advise.estimators.workload import LossKernel, Method, Mlp, Objective, Precision

DATA = Path(__file__).resolve().parents[1] / "data"
_CONFIGS: dict[str, dict[str, dict[str, Any]]] = json.loads((DATA / "families.json").read_text(encoding="utf-8"))
FAMILIES = _CONFIGS["grid"] | _CONFIGS["sharing"] | _CONFIGS["recorded"] | _CONFIGS["encoders"]
"""The grid's models and parts of real ones; experts with shared ones, as AutoEP knows them; types without a row in
`estimators.models.families`, whose layers are recorded, encoders among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan to compare; `changes` are applied to the strategy's preset."""

    model: str
    strategy: Strategy
    world_size: int = 8
    micro_batch_size: int = 1
    seq_len: int = 1024
    gradient_accumulation_steps: int = 1
    checkpointing: bool = True
    method: Method = "full"
    modules_to_save: tuple[str, ...] = ()
    dora: bool = False
    precision: Precision = "bf16"
    mlp: Mlp = "whole"
    loss: LossKernel = "standard"
    objective: Objective = "next-token"
    precomputed: bool = False
    beta: float = 0.0
    """Of "grpo"."""
    changes: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        parts = [self.model, self.strategy, f"N={self.world_size}", f"B={self.micro_batch_size}", f"S={self.seq_len}"]
        parts += [f"gas={self.gradient_accumulation_steps}"] * (self.gradient_accumulation_steps > 1)
        parts += ["no-ckpt"] * (not self.checkpointing) + [self.method] * (self.method != "full")
        parts += ["dora"] * self.dora
        parts += [f"saves={','.join(self.modules_to_save)}"] * bool(self.modules_to_save)
        parts += [self.precision] * (self.precision != "bf16")
        parts += [f"mlp={self.mlp}"] * (self.mlp != "whole") + [f"loss={self.loss}"] * (self.loss != "standard")
        parts += [self.objective] * (self.objective != "next-token") + ["precomputed"] * self.precomputed
        parts += [f"beta={self.beta:g}"] * (self.beta > 0)
        return " ".join([*parts, *(f"{key}={value}" for key, value in self.changes)])


def _cases(entry: dict[str, Any]) -> Iterator[Case]:
    """The cases of an entry of the file."""
    axes = {key: value if isinstance(value, list) else [value] for key, value in entry.items() if key != "together"}
    for together in entry.get("together", [{}]):
        for values in product(*axes.values()):
            fields = {**dict(zip(axes, values, strict=True)), **together}
            saved = fields.pop("modules_to_save", "")
            fields["modules_to_save"] = tuple(saved.split(",")) if saved else ()
            fields["changes"] = tuple(fields.get("changes", {}).items())
            yield Case(**fields)


_GROUPS = {
    name: tuple(case for entry in entries for case in _cases(entry))
    for name, entries in json.loads((DATA / "dry_run_cases.json").read_text(encoding="utf-8")).items()
}
GRID, PREFERENCES, ROLLOUTS, PPO = (_GROUPS[name] for name in ("grid", "preferences", "rollouts", "ppo"))
WITHOUT_VOCABULARY, DORA = _GROUPS["without vocabulary"], _GROUPS["DoRA"]
RECORDED_CASES, EXPERTS_SPREAD = _GROUPS["recorded"], _GROUPS["experts spread"]
SPECIAL = tuple(case for name, cases in _GROUPS.items() if name.startswith("special: ") for case in cases)


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` of the cases as a fixed pseudorandom sample; a larger count includes a smaller one."""
    return sorted(cases, key=lambda case: crc32(case.name.encode()))[:count]
