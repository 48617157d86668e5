"""Facts of a DeepSpeed version, parsed from its sources without running them.

`class_blocks`: the blocks that pydantic classes check, with fields, types, defaults and deprecations. `looked_up_keys`:
the keys that other code looks up by name. `signatures`: the arguments of optimizers and schedulers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .facts import ConfigBlock, DeepSpeedFacts, Parameter, Signatures
from .read_classes import CLASS_FILES, UNKNOWN, ParsedSources, assignments, class_blocks, literal, parse

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
"""(file, function that gets the whole configuration) of features that 0.19.8 no longer has."""

_LOOKUP_FILES = frozenset(_READERS) | {file for file, _ in _FEATURES}

_MONITORS = ("monitor/config.py", "get_monitor_config")
_GETTERS = ("get_scalar_param", "get_dict_param", "get_list_param", "get_communication_data_type")


def looked_up_keys(sources: ParsedSources) -> dict[str, dict[str, Any]]:
    """Path of a block -> the keys that are looked up in it, with their defaults."""
    keys: dict[str, dict[str, Any]] = {"": dict.fromkeys(_monitors(sources), UNKNOWN)}
    for file, names in _READERS.items():
        if file in sources.trees:
            for path, key, default in _lookups(sources.trees[file], names, sources.constants):
                _add_key(keys.setdefault(path, {}), key, default)
    for file, function in _FEATURES:
        for node in sources.functions(file, function):
            for path, key, default in _lookups(node, {node.args.args[0].arg: ""}, sources.constants):
                if not path:
                    _add_key(keys[""], key, default)
    return keys


def _add_key(keys: dict[str, Any], key: str, default: Any) -> None:
    if keys.get(key, UNKNOWN) is UNKNOWN:
        keys[key] = default


def _lookups(tree: ast.AST, names: dict[str, str], constants: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(path of the block, key, default) of every look-up in a dictionary with a known place. The constant NAME_DEFAULT
    is the default of the key that NAME holds."""
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
                yield owner, key, constants.get(f"{ast.unparse(lookup[1])}_DEFAULT", UNKNOWN)


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


_OPTIMIZERS = (
    "ops/adam/fused_adam.py",
    "ops/adam/cpu_adam.py",
    "ops/lion/fused_lion.py",
    "ops/lion/cpu_lion.py",
    "ops/adagrad/cpu_adagrad.py",
    "ops/lamb/fused_lamb.py",
)


def signatures(*files: Path) -> Signatures:
    """Each class of these files with its arguments except `self` and the first one, the optimizer or its parameters."""
    return {
        node.name: _parameters(function.args)
        for file in files
        for node in getattr(parse(file), "body", ())
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    }


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    names = [argument.arg for argument in arguments.args]
    required = names[: len(names) - len(arguments.defaults)]
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    return tuple(
        Parameter(name=name, required=name in required and name not in keywords) for name in names[2:] + keywords
    )


_SCHEDULERS = "runtime/lr_schedules.py"

_OPEN = (
    "autotuning.model_info",
    "data_efficiency",
    "pipeline",
    "expert_parallel",
    "datastates_ckpt",
    "optimizer.params",
    "scheduler.params",
    "autotuning.arg_mappings",
    "elasticity",
    "nebula",
    "compression_training",
    "curriculum_learning",
)
"""Blocks with keys that are not read here: a class's arguments, or deeper levels."""


def read_facts(folder: Path, version: str, torch_folder: Path | None = None) -> DeepSpeedFacts:
    """The facts of the DeepSpeed sources in `folder`, and the optimizers of the torch sources in
    `torch_folder`. A file that a version lacks contributes nothing."""
    sources = ParsedSources(folder, CLASS_FILES | _LOOKUP_FILES | {_SCHEDULERS})
    blocks = class_blocks(sources)
    keys = looked_up_keys(sources)
    for path in blocks:
        if "." not in path:
            _add_key(keys[""], path, UNKNOWN)
    for path in (*keys, *blocks):
        owner, _, name = path.rpartition(".")
        if name and owner not in blocks:
            _add_key(keys.setdefault(owner, {}), name, UNKNOWN)
    removed = removed_keys(sources)
    for path, names in keys.items():
        if path not in blocks and not _is_open(path):
            left = sorted(name for name in names if (f"{path}.{name}" if path else name) not in removed)
            defaults = {name: names[name] for name in left if names[name] is not UNKNOWN}
            blocks[path] = ConfigBlock(path=path, strict=False, keys=tuple(left), defaults=defaults)
    optim = torch_folder / "optim" if torch_folder else Path()
    torch_files = sorted(optim.glob("[a-z]*.py")) if torch_folder else []
    own = [file for file in torch_files if file.stem not in ("lr_scheduler", "optimizer", "swa_utils")]
    return DeepSpeedFacts(
        version=version,
        blocks=tuple(blocks.values()),
        removed=removed,
        optimizers=tuple(sources.constants.get("DEEPSPEED_OPTIMIZERS", ())),
        optimizer_classes=signatures(*(folder / file for file in _OPTIMIZERS)),
        schedulers=signatures(folder / _SCHEDULERS),
        torch_optimizers=_public(signatures(*own)),
        torch_schedulers=_public(signatures(optim / "lr_scheduler.py")) if torch_folder else {},
    )


def _public(found: Signatures) -> Signatures:
    return {name: parameters for name, parameters in found.items() if not name.startswith("_")}


def _is_open(path: str) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in _OPEN)
