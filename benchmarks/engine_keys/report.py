"""The classes of the engine's keys: `validate/lint/key_effects.json`, and the table of the manual."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import ds_advise
from ds_advise.estimators.plan import PLAN_FIELDS
from ds_advise.validate.lint import DeepSpeedFacts
from ds_advise.validate.lint.key_effects import BY_SCRIPT

from .study import Verdict

TABLE = Path(ds_advise.__file__).parent / "validate" / "lint" / "key_effects.json"


OVERLAPS = ("tensor_parallel.tp_overlap_comm",)
"""Keys that only hide communication behind computation, which a model so small that the host bounds its steps does not
show. The closed form adds both."""


class Classes:
    """Keys by what dry runs say of them at all bases.

    A key is in the first class that applies: unfollowed if its effect is not that of the closed form; followed if a
    value has an effect; without effect if no value has one; refused if every value is refused by the engine, the dry
    run or the closed form.
    """

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        by_key = defaultdict[str, list[Verdict]](list)
        for verdict in verdicts:
            by_key[verdict.changes[0].path].append(verdict)
        self.bases = list(dict.fromkeys(verdict.base for verdict in verdicts))
        self.by_script = [path for path in BY_SCRIPT if path in by_key]
        self.unfollowed: dict[str, list[str]] = {}
        self.followed, self.without_effect, self.refused = list[str](), list[str](), list[str]()
        self.worst: dict[str, Verdict] = {}
        for path, found in sorted(by_key.items()):
            if path in BY_SCRIPT:
                continue
            differing = [verdict for verdict in found if verdict.outcome.kind == "differs" and not verdict.unsupported]
            wrong = [verdict for verdict in differing if not verdict.follows or path in OVERLAPS]
            kinds = {verdict.outcome.kind for verdict in found if not verdict.unsupported}
            if wrong:
                unknown = [verdict for verdict in found if verdict.outcome.kind == "refused" or verdict.unsupported]
                self.unfollowed[path] = list(dict.fromkeys(verdict.base for verdict in (*wrong, *unknown)))
                self.worst[path] = max(wrong, key=lambda each: max(map(abs, each.errors.values()), default=0))
            elif "differs" in kinds:
                self.followed.append(path)
            else:
                (self.without_effect if "same" in kinds else self.refused).append(path)

    def write(self, facts: DeepSpeedFacts) -> None:
        """Write the file from which lint and the answers know the keys."""
        table = {
            "deepspeed": facts.version,
            "bases": self.bases,
            "without_effect": self.without_effect,
            "followed": [path for path in self.followed if path not in {known.path for known in PLAN_FIELDS.values()}],
            "unfollowed": self.unfollowed,
        }
        TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")

    def table(self, facts: DeepSpeedFacts, pairs: Iterable[Verdict], follows: Collection[str]) -> str:
        """Return the table of the manual. follows: keys whose effect the package takes for predicted, tested or not."""
        measured = {*self.by_script, *self.unfollowed, *self.followed, *self.without_effect, *self.refused}
        every = all_keys(facts)
        refused = [path for path in self.refused if path not in follows]
        read = sorted({*follows} & every - measured | {*self.refused} - {*refused})
        others = sorted(every - measured - {*read})
        pairs = list(pairs)
        agreeing = [pair for pair in pairs if self.accounts_for(pair)]
        rows = [
            ("predicted, followed in every dry run", self.followed),
            ("predicted, and varied by the base configurations and other tests", read),
            ("without effect on bytes and operations of a step", self.without_effect),
            ("with an effect only on scripts of another kind, named when they are set", self.by_script),
            ("refused in every dry run, named when they are set", refused),
            ("not run, named when they are set", others),
        ]
        lines = [f"DeepSpeed {facts.version}: {len(every)} keys, {len(self.bases)} base configurations.", ""]
        lines += ["| class | keys | |", "|---|---:|---|"]
        for title, paths in rows:
            lines.append(f"| {title} | {len(paths)} | {', '.join(f'`{path}`' for path in paths)} |")
        lines += ["", f"Not predicted, and sent to the dry run ({len(self.unfollowed)}):", ""]
        lines += ["| key | at | largest difference |", "|---|---|---|"]
        for path, bases in self.unfollowed.items():
            worst = self.worst[path]
            error = ", ".join(f"{name} {size:+.0%}" for name, size in worst.errors.items() if abs(size) > 0.02)
            lines.append(f"| `{worst.changes[0]}` | {'; '.join(bases)} | {error} |")
        if pairs:
            lines += [
                "",
                f"Random pairs of keys with an effect: {len(agreeing)} of {len(pairs)} are followed or named.",
            ]
        return "\n".join(lines) + "\n"

    def accounts_for(self, pair: Verdict) -> bool:
        """Return whether the closed form follows a pair of keys, or one of them is named as not predicted."""
        named = any(pair.base in self.unfollowed.get(each.path, ()) for each in pair.changes)
        return pair.outcome.kind != "differs" or pair.follows or named


def all_keys(facts: DeepSpeedFacts) -> set[str]:
    """Return the paths of all keys, without deprecated ones, the old name of bf16, and blocks."""
    found = set[str]()
    for block in facts.blocks:
        if block.path != "bfloat16":
            fields = (field.usual_name for field in block.fields if not field.block and not field.deprecated)
            found |= {block.qualified_path(name) for name in (*fields, *block.keys)}
    return {path for path in found if facts.block(path) is None and path != "bfloat16"}
