"""DS0xx: how the file is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..document import Departure, DocumentNode
from ..linted_config import LintedConfig
from ..rule import Hit, Path, Rules

rules = Rules()

_CONFIG = "runtime/config.py DeepSpeedConfig"
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_HF = "accelerate/utils/deepspeed.py HfDeepSpeedConfig"


@rules.error(
    "DS001 more than JSON in a file that is read as JSON",
    why="DeepSpeed reads Hjson, but the Trainer and accelerate read the file with Python's json and stop",
    fix="write plain JSON, or pass the file to deepspeed.initialize",
    source=_HF,
    options={"framework": "hf"},
    bad='{"train_micro_batch_size_per_gpu": "auto", # per GPU\n "zero_optimization": {"stage": 2}}',
    good='{"train_micro_batch_size_per_gpu": "auto",\n "zero_optimization": {"stage": 2}}',
)
def more_than_json(config: LintedConfig) -> Iterator[Hit]:
    departures = [found for found in config.document.departures if found.kind not in _NOT_NUMBERS]
    if config.framework == "hf" and departures:
        first = departures[0]
        line, column = config.document.place(first.start)
        kinds = ", ".join(dict.fromkeys(found.kind for found in departures))
        yield Hit(path=_path_at(config.document.root, first), what=f"{kinds} (first at line {line}, column {column})")


@rules.error(
    "DS002 a number too large for a float",
    why="DeepSpeed's reader fails on it with an OverflowError; Python's json makes it infinite",
    fix="write a number below 1.8e308",
    source="hjson decoder.py scantfnns",
    bad='{"train_batch_size": 8, "gradient_clipping": 1e400}',
    good='{"train_batch_size": 8, "gradient_clipping": 1e30}',
)
def infinite_number(config: LintedConfig) -> Iterator[Hit]:
    literal = {found.start for found in config.document.departures}
    for path, node in _walk(config.document.root, ()):
        if isinstance(node.value, float) and math.isinf(node.value) and node.start not in literal:
            yield Hit(
                path=path,
                what=f"{config.document.text[node.start : node.end][:20]} is infinite",
                severity="warning" if config.framework == "hf" else None,
            )


@rules.error(
    "DS003 a byte order mark in front of the file",
    why="DeepSpeed's reader skips it, but Python's json, with which the Trainer and accelerate read, stops at it",
    fix="save the file as UTF-8 without a byte order mark",
    source=_HF,
    options={"framework": "hf"},
    bad='\ufeff{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}',
    good='{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}',
)
def byte_order_mark(config: LintedConfig) -> Iterator[Hit]:
    if config.document.byte_order_mark and config.framework == "hf":
        yield Hit(path=(), what="the file begins with a byte order mark")


@rules.error(
    "DS004 a key twice in one object",
    why="DeepSpeed refuses the file; the Trainer and accelerate silently take the last one",
    fix="remove one of them",
    source="runtime/config_utils.py dict_raise_error_on_duplicate_keys",
    bad='{"train_batch_size": 8, "train_batch_size": 16}',
    good='{"train_batch_size": 16}',
)
def duplicate(config: LintedConfig) -> Iterator[Hit]:
    for path, member in config.document.duplicates():
        line, _ = config.document.place(member.start)
        yield Hit(
            path=path,
            what=f"{path[-1]!r} stands here again (line {line})",
            severity="warning" if config.framework == "hf" else None,
        )


@rules.warning(
    "DS005 NaN or Infinity",
    why="JSON has no such value: DeepSpeed's reader takes the word, and the rest of the line, as text",
    fix="write a number",
    source="hjson decoder.py scantfnns",
    bad='{"train_batch_size": 8, "gradient_clipping": NaN\n}',
    good='{"train_batch_size": 8, "gradient_clipping": 1.0}',
)
def not_a_number(config: LintedConfig) -> Iterator[Hit]:
    for found in config.document.departures:
        if found.kind in _NOT_NUMBERS:
            yield Hit(path=_path_at(config.document.root, found), what=f"{found.kind} is not JSON")


def _walk(node: DocumentNode, path: Path) -> Iterator[tuple[Path, DocumentNode]]:
    yield path, node
    for member in node.members:
        yield from _walk(member.node, (*path, member.key))
    for index, item in enumerate(node.items):
        yield from _walk(item, (*path, str(index)))


def _path_at(node: DocumentNode, found: Departure) -> Path:
    """The key in whose value or name a place is, or the one before it."""
    before = [member for member in node.members if member.start <= found.start]
    if not before:
        return ()
    return (before[-1].key, *_path_at(before[-1].node, found))
