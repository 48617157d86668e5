"""The keys that DeepSpeed looks up by name, by the block in which it looks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from .parsed import ParsedSources, assignments, literal

_READERS: dict[str, dict[str, str]] = {
    "runtime/config.py": {
        "param_dict": "",
        "self._param_dict": "",
        "checkpoint_params": "checkpoint",
        "data_types_params": "data_types",
    },
    "__init__.py": {"config": ""},
    "runtime/zero/config.py": {"param_dict": ""},
    "runtime/precision_config.py": {"param_dict": ""},
    "runtime/activation_checkpointing/config.py": {
        "param_dict": "",
        "act_chkpt_config_dict": "activation_checkpointing",
    },
    "runtime/swap_tensor/aio_config.py": {"param_dict": ""},
    "runtime/model_checkpointing/config.py": {"checkpoint_dict": "checkpoint", "writer_dict": "checkpoint.writer"},
    "comm/config.py": {"ds_config": ""},
    "monitor/config.py": {"param_dict": ""},
    "profiling/config.py": {"param_dict": "", "flops_profiler_dict": "flops_profiler"},
    "autotuning/config.py": {"autotuning_dict": "autotuning"},
    "utils/config.py": {"param_dict": ""},
    "datastates/config.py": {"param_dict": ""},
    "nebula/config.py": {"param_dict": ""},
    "runtime/tensor_parallel/config.py": {"ds_config": ""},
    "runtime/data_pipeline/config.py": {"param_dict[DATA_EFFICIENCY]": "data_efficiency"},
}
"""File -> the names under which its functions hold a part of the configuration, and that part's path."""

_FEATURES = (
    ("compression/config.py", "get_compression_config"),
    ("elasticity/elasticity.py", "elasticity_enabled"),
    ("runtime/data_pipeline/config.py", "get_curriculum_enabled_legacy"),
)
"""(file, function whose argument is the whole configuration) of features that 0.19.8 has no more."""

_LOOKUP_FILES = frozenset(_READERS) | {file for file, _ in _FEATURES}

_MONITORS = ("monitor/config.py", "get_monitor_config")
_GETTERS = ("get_scalar_param", "get_dict_param", "get_list_param", "get_communication_data_type")


def looked_up_keys(sources: ParsedSources) -> dict[str, set[str]]:
    """Path of a block -> the keys that are looked up in it."""
    keys: dict[str, set[str]] = {"": _monitors(sources)}
    for file, names in _READERS.items():
        if file in sources.trees:
            for path, key in _lookups(sources.trees[file], names, sources.constants):
                keys.setdefault(path, set()).add(key)
    for file, function in _FEATURES:
        for node in sources.functions(file, function):
            keys[""] |= {
                key for path, key in _lookups(node, {node.args.args[0].arg: ""}, sources.constants) if not path
            }
    return keys


def _lookups(tree: ast.AST, names: dict[str, str], constants: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(path of the block, key) of every look-up in a dictionary whose place is known."""
    places = dict(names)
    constants = constants | _argument_defaults(tree, constants)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            place = _place(node.value, places, constants)
            if place:
                places.setdefault(node.targets[0].id, place)
    for node in ast.walk(tree):
        lookup = _lookup(node)
        if lookup is not None:
            owner, key = _place(lookup[0], places, constants), literal(lookup[1], constants)
            if owner is not None and isinstance(key, str):
                yield owner, key


def _argument_defaults(tree: ast.AST, constants: dict[str, Any]) -> dict[str, str]:
    """Text that arguments have by default: `get_communication_data_type(param_dict,
    comm_type=COMMUNICATION_DATA_TYPE)`."""
    defaults = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.defaults:
            for argument, default in zip(node.args.args[-len(node.args.defaults) :], node.args.defaults, strict=True):
                value = literal(default, constants)
                if isinstance(value, str):
                    defaults[argument.arg] = value
    return defaults


def _lookup(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(dictionary, key) of `d[k]`, `d.get(k)`, `k in d`, `k not in d.keys()` and `get_scalar_param(d, k, ...)`."""
    match node:
        case ast.Subscript(ctx=ast.Load()):
            return node.value, node.slice
        case ast.Call(func=ast.Attribute(attr="get", value=owner), args=[key, *_]):
            return owner, key
        case ast.Call(func=ast.Name(id=name), args=[owner, key, *_]) if name in _GETTERS:
            return owner, key
        case ast.Compare(
            ops=[ast.In() | ast.NotIn()], comparators=[ast.Call(func=ast.Attribute(attr="keys", value=owner))]
        ):
            return owner, node.left
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[owner]):
            return owner, node.left
    return None


def _place(node: ast.expr, places: dict[str, str], constants: dict[str, Any]) -> str | None:
    """The path of the block that an expression holds, None if it holds none."""
    if ast.unparse(node) in places:
        return places[ast.unparse(node)]
    lookup = _lookup(node)
    if lookup is None or isinstance(node, ast.Compare):
        return None
    owner, key = _place(lookup[0], places, constants), literal(lookup[1], constants)
    if owner is None or not isinstance(key, str):
        return None
    return f"{owner}.{key}" if owner else key


def _monitors(sources: ParsedSources) -> set[str]:
    """The blocks that `get_monitor_config` takes in a loop over their names."""
    file, function = _MONITORS
    return {
        item.value
        for node in sources.functions(file, function)
        for part in ast.walk(node)
        if isinstance(part, ast.Tuple)
        for item in part.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


def removed_keys(sources: ParsedSources) -> dict[str, str]:
    """Path -> message, of the keys that `_reject_removed_config_keys` refuses."""
    tables = {"_REMOVED_TOP_LEVEL_CONFIG_KEYS": "", "_REMOVED_ZERO_CONFIG_KEYS": "zero_optimization."}
    removed: dict[str, str] = {}
    tree = sources.trees.get("runtime/config.py")
    for name, table in assignments(tree) if tree is not None else ():
        if name in tables and isinstance(table, ast.Dict):
            for key, text in zip(table.keys, table.values, strict=True):
                removed[tables[name] + str(sources.literal(key))] = _text(text, sources)
    return removed


def _text(node: ast.expr, sources: ParsedSources) -> str:
    """A string or an f-string of constants."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, sources) for part in node.values)
    return str(sources.literal(node.value if isinstance(node, ast.FormattedValue) else node))
