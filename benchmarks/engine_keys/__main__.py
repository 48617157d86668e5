"""Every key of the engine's configuration in dry runs: does it change bytes or operations, and does the closed form
follow?

    python -m benchmarks.engine_keys [NAME ...] [--base BASE] [--pairs N] [--seed N] [--workers N]
                                     [--answers FILE [--offline]] [--write]

The keys are those that `validate.lint.read_deepspeed` finds in the installed DeepSpeed: the fields of its pydantic
classes and the keys that its code looks up, so those of a new version come by themselves. Each gets other values than
its default, from `data/engine_key_values.json` or from its type, on every base configuration of `study.BASES`: two
ranks, a model of two layers, two micro batches.

Keys without effect are found in groups: a group of settings that changes neither a byte nor an operation of the dry run
contains none with an effect, unless two cancel each other exactly. A group that differs or is refused is halved.

NAME:      only keys whose path contains it.
--pairs:   also N random pairs of keys with an effect, at each base.
--answers: keep the outcomes in FILE, and reuse those in it. --offline: run nothing.
--write:   write `ds_configs/key_effects.json`, from which lint and the answers know which keys are predicted, and the
table of docs/closed-form.md.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from ds_advise.validate.lint import load_facts
from ds_advise.validate.lint.key_effects import follows, without_effect

from ..document import put
from .report import Classes, all_keys
from .study import BASES, Study, Verdict, all_changes


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    facts = load_facts()
    changes = [
        change
        for change in all_changes(facts)
        if not options.names or any(name in change.path for name in options.names)
    ]
    verdicts, pairs = list[Verdict](), list[Verdict]()
    alone = {change for change in changes if change.path not in without_effect()}
    for base in options.base or BASES:
        study = Study(base, options.answers, options.workers, offline=options.offline)
        study.singles(changes, alone)
        alone |= {change for change in changes if study.kind_of(change) != "same"}
        verdicts += [study.verdict((change,)) for change in changes if (change,) in study.outcomes]
        found = study.pairs(changes, options.pairs, random.Random(options.seed))
        pairs += [study.verdict(pair) for pair in found]
        _print(base, [verdict for verdict in (*verdicts, *pairs) if verdict.base == base])
    classes = Classes(verdicts)
    read = {path for path in all_keys(facts) if follows(path)}
    if options.write:
        classes.write(facts)
        put("closed-form.md", "engine_keys", classes.table(facts, pairs, read))
    missed = [pair for pair in pairs if not classes.accounts_for(pair)]
    for pair in missed:
        print(f"neither followed nor named: {' '.join(map(str, pair.changes))} at {pair.base}")
    return int(bool(missed))


def _print(base: str, verdicts: Sequence[Verdict]) -> None:
    kinds = [verdict.outcome.kind for verdict in verdicts]
    print(
        f"## {base}: {len(verdicts)} settings, " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted({*kinds}))
    )
    for verdict in verdicts:
        if verdict.outcome.kind == "same":
            continue
        name = " ".join(map(str, verdict.changes))
        if verdict.outcome.kind == "refused":
            print(f"  refused {name}: {verdict.outcome.why[:140]}")
            continue
        figures = ", ".join(f"{name} {error:+.1%}" for name, error in verdict.errors.items())
        print(f"  {'follows' if verdict.follows else 'NOT'} {name}: {figures} {verdict.unsupported}")
    sys.stdout.flush()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="engine_keys", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--base", action="append", choices=BASES)
    parser.add_argument("--pairs", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
