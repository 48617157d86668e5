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
from collections.abc import Iterable, Iterator
from pathlib import Path

from ds_advise.advisor.importers.imported_run import KNOWN_KEYS

FOLDERS = {
    "llama-factory": ("src/llamafactory/hparams",),
    "axolotl": ("src/axolotl/utils/schemas", "src/axolotl/integrations"),
    "ms-swift": ("swift/arguments", "swift/trainers", "swift/rlhf_trainers", "swift/ray_utils"),
    "trl": ("trl/trainer", "trl/scripts", "trl/experimental"),
}
"""Where each tool's classes of arguments are."""

AXOLOTL_ROOT = "AxolotlConfigWCapabilities"
"""The class of axolotl's whole configuration, to which plugins add classes of their own. Other classes describe blocks
inside it."""


class Classes:
    """The classes in the modules of some folders."""

    def __init__(self, folders: Iterable[Path]) -> None:
        paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
        self.trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        self.all = [node for node in nodes if isinstance(node, ast.ClassDef)]
        # Of several with one name the first: TRL's own before an experimental one.
        self.by_name = {node.name: node for node in reversed(self.all)}

    def fields(self, *names: str) -> set[str]:
        """The names of all annotated fields of these classes and of their bases in the folders, and the aliases of
        pydantic's."""
        nodes = [self.by_name[name] for name in names if name in self.by_name]
        bases = [base.id for node in nodes for base in node.bases if isinstance(base, ast.Name)]
        return _declared(nodes) | (self.fields(*bases) if bases else set())

    def of_plugins(self) -> list[str]:
        """The classes that axolotl's plugins add: the paths that their `get_input_args` return."""
        found = [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        returned = [
            item.value
            for node in found
            if node.name == "get_input_args"
            for item in ast.walk(node)
            if isinstance(item, ast.Return) and isinstance(item.value, ast.Constant)
        ]
        return [str(each.value).rpartition(".")[2] for each in returned if each.value]

    def of_trls_commands(self) -> dict[str, list[str]]:
        """The classes whose fields are the options of each of TRL's training scripts: their `dataclass_types`."""
        return {
            path.stem: [name.id for name in node.value.elts if isinstance(name, ast.Name)]
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if path.parent.name == "scripts" and isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "dataclass_types"
        }


def _declared(nodes: Iterable[ast.ClassDef]) -> set[str]:
    """The annotated fields of classes themselves."""
    items = [item for node in nodes for item in node.body if isinstance(item, ast.AnnAssign)]
    names = {item.target.id for item in items if isinstance(item.target, ast.Name)}
    return names.union(*(_aliases(item.value) for item in items))


def _aliases(value: ast.expr | None) -> Iterator[str]:
    """The texts of a field's `alias` and `validation_alias`."""
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg in ("alias", "validation_alias"):
            for node in ast.walk(keyword.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def known_keys(checkouts: dict[str, Path]) -> dict[str, list[str]]:
    """Sorted names by tool; what LLaMA-Factory, ms-swift and TRL take from TrainingArguments stands there alone. TRL
    passes options of `accelerate launch` on (TRL 1.16 cli/accelerate_config.py). "trl" has the keys of all
    its trainers, the experimental ones included, "trl-all" those that every training script has, and "trl-NAME" the
    further ones of a script."""
    from accelerate.commands.launch import launch_command_parser
    from transformers import Seq2SeqTrainingArguments

    shared = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    found = {"training-arguments": sorted(shared)}
    for tool, checkout in checkouts.items():
        classes = Classes(checkout / folder for folder in FOLDERS[tool])
        lists = {tool: _declared(classes.all)}
        if tool == "axolotl":
            lists = {tool: classes.fields(AXOLOTL_ROOT, *classes.of_plugins())}
        elif tool == "trl":
            launch = {action.dest for action in launch_command_parser()._actions} | {"accelerate_config"}
            scripts = {name: classes.fields(*roots) for name, roots in classes.of_trls_commands().items()}
            common = set.intersection(*scripts.values())
            lists = {tool: lists[tool] | launch, "trl-all": common | launch}
            lists |= {f"trl-{name}": names - common for name, names in scripts.items()}
        inherited = shared if tool != "axolotl" else set()  # which has a schema of its own
        found |= {
            name: sorted(key for key in names - inherited if not key.startswith("_")) for name, names in lists.items()
        }
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
