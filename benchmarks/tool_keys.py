"""The keys that other tools' configurations may have, read from the classes in their sources.

    python -m benchmarks.tool_keys LLAMA_FACTORY AXOLOTL MS_SWIFT TRL --write

The arguments are checkouts; TrainingArguments are those of the installed transformers. `ds-advise from` recognises by
the file that is written which keys of a configuration are a tool's own and which are none, such as typing errors.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from ds_advise.advisor.importers.imported_run import KNOWN_KEYS

FOLDERS = {
    "llama-factory": ("src/llamafactory/hparams",),
    "axolotl": ("src/axolotl/utils/schemas", "src/axolotl/integrations"),
    "ms-swift": ("swift/arguments", "swift/trainers", "swift/rlhf_trainers", "swift/ray_utils"),
    "trl": ("trl/trainer", "trl/scripts", "trl/experimental"),
}
"""Where each tool's classes of arguments are."""


def declared(folder: Path) -> Iterator[str]:
    """The names of all annotated fields of all classes in a folder's modules, and the aliases of pydantic's."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        yield item.target.id
                        yield from _aliases(item.value)


def _aliases(value: ast.expr | None) -> Iterator[str]:
    """The texts of a field's `alias` and `validation_alias`."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg in ("alias", "validation_alias"):
            for node in ast.walk(keyword.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def known_keys(checkouts: dict[str, Path]) -> dict[str, list[str]]:
    """Sorted names by tool; what LLaMA-Factory, ms-swift and TRL take from TrainingArguments stands there alone. TRL
    passes options of `accelerate launch` on (TRL 1.16 cli/accelerate.py)."""
    from accelerate.commands.launch import launch_command_parser
    from transformers import Seq2SeqTrainingArguments

    shared = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    found = {"training-arguments": sorted(shared)}
    for tool, checkout in checkouts.items():
        names = {name for folder in FOLDERS[tool] for name in declared(checkout / folder)}
        if tool == "trl":
            names |= {action.dest for action in launch_command_parser()._actions} | {"accelerate_config"}
        inherited = shared if tool != "axolotl" else set()  # which has a schema of its own
        found[tool] = sorted(name for name in names - inherited if not name.startswith("_"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for tool in FOLDERS:
        parser.add_argument(tool.replace("-", "_"), type=Path, help=f"a checkout of {tool}")
    parser.add_argument("--write", action="store_true", help=f"write {KNOWN_KEYS.name}")
    options = parser.parse_args()
    found = known_keys({tool: getattr(options, tool.replace("-", "_")) for tool in FOLDERS})
    print({tool: len(names) for tool, names in found.items()})
    if options.write:
        kept = json.loads(KNOWN_KEYS.read_text(encoding="utf-8")) | {
            tool: " ".join(names) for tool, names in found.items()
        }
        KNOWN_KEYS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
