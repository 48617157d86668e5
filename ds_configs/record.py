"""The block `ds_advise` of a configuration, in which the program records the question that the configuration answers.

It is a block of the file, not a second file, so that it is copied, renamed and deleted with the configuration.
DeepSpeed reads the keys that it knows and ignores others (0.19.8 runtime/config.py). The Trainer and accelerate look up
the value of every key at every depth that is "auto" (accelerate 1.15 utils/deepspeed.py `fill_match`), so no value of
the block is "auto".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

RECORD_KEY = "ds_advise"


def without_record(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without its record."""
    return {name: value for name, value in config.items() if name != RECORD_KEY}


def changed_keys(written: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """The differences of a configuration from the `written` one, a phrase each: `zero_optimization.stage is 2, not
    3`."""
    before, now = dict(_leaves(without_record(written))), dict(_leaves(without_record(config)))
    found = []
    for path in dict.fromkeys([*before, *now]):
        if path not in now:
            found.append(f"{path} is gone")
        elif path not in before:
            found.append(f"{path} is new")
        elif before[path] != now[path]:
            found.append(f"{path} is {_shown(now[path])}, not {_shown(before[path])}")
    return tuple(found)


def _leaves(block: Mapping[str, Any], owner: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        path = f"{owner}.{name}" if owner else name
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
