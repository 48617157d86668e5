"""Facts of a DeepSpeed version from its sources, parsed and not imported: importing DeepSpeed imports torch, which
takes seconds.

Two kinds of code read a configuration. Blocks with a pydantic class (`DeepSpeedConfigModel`) have typed fields and
refuse other keys. Everything else is looked up by name (`get_scalar_param(param_dict, KEY, DEFAULT)`,
`param_dict[KEY]`), and a key that nothing looks up is ignored in silence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .facts import ConfigBlock, ConfigField, DeepSpeedFacts, FieldType, Parameter

CLASSES = {
    "zero_optimization": ("runtime/zero/config.py", "DeepSpeedZeroConfig"),
    "fp16": ("runtime/precision_config.py", "DeepSpeedFP16Config"),
    "bf16": ("runtime/precision_config.py", "DeepSpeedBF16Config"),
    "bfloat16": ("runtime/precision_config.py", "DeepSpeedBF16Config"),
    "comms_logger": ("comm/config.py", "CommsLoggerConfig"),
    "tensorboard": ("monitor/config.py", "TensorBoardConfig"),
    "wandb": ("monitor/config.py", "WandbConfig"),
    "csv_monitor": ("monitor/config.py", "CSVConfig"),
    "comet": ("monitor/config.py", "CometConfig"),
    "hybrid_engine": ("runtime/config.py", "HybridEngineConfig"),
    "compile": ("compile/config.py", "CompileConfig"),
    "timers.throughput": ("utils/config.py", "DeepSpeedThroughputTimerConfig"),
    "weight_quantization": ("inference/config.py", "WeightQuantConfig"),
    "tensor_parallel": ("runtime/tensor_parallel/config.py", "TPTrainingConfig"),
}
"""Block -> the file and class that check it."""

_READERS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "runtime/config.py",
        {
            "param_dict": "",
            "self._param_dict": "",
            "checkpoint_params": "checkpoint",
            "data_types_params": "data_types",
        },
    ),
    ("__init__.py", {"config": ""}),
    ("runtime/zero/config.py", {"param_dict": ""}),
    ("runtime/precision_config.py", {"param_dict": ""}),
    (
        "runtime/activation_checkpointing/config.py",
        {"param_dict": "", "act_chkpt_config_dict": "activation_checkpointing"},
    ),
    ("runtime/swap_tensor/aio_config.py", {"param_dict": ""}),
    ("runtime/model_checkpointing/config.py", {"checkpoint_dict": "checkpoint", "writer_dict": "checkpoint.writer"}),
    ("comm/config.py", {"ds_config": ""}),
    ("monitor/config.py", {"param_dict": ""}),
    ("profiling/config.py", {"param_dict": "", "flops_profiler_dict": "flops_profiler"}),
    ("autotuning/config.py", {"autotuning_dict": "autotuning"}),
    ("utils/config.py", {"param_dict": ""}),
    ("datastates/config.py", {"param_dict": ""}),
    ("nebula/config.py", {"param_dict": ""}),
    ("runtime/tensor_parallel/config.py", {"ds_config": ""}),
    ("runtime/data_pipeline/config.py", {"param_dict[DATA_EFFICIENCY]": "data_efficiency"}),
)
"""File -> the names under which its functions hold a part of the configuration."""

_TOP_LEVEL_TUPLE = ("monitor/config.py", "get_monitor_config")
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
)
"""Blocks whose keys are somebody else's: a class's arguments, or nested further than is read here."""

_GETTERS = ("get_scalar_param", "get_dict_param", "get_list_param", "get_communication_data_type")
_OPTIMIZERS = (
    "ops/adam/fused_adam.py",
    "ops/adam/cpu_adam.py",
    "ops/lion/fused_lion.py",
    "ops/lion/cpu_lion.py",
    "ops/adagrad/cpu_adagrad.py",
    "ops/lamb/fused_lamb.py",
)
_PLAIN = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "Path": "path",
    "list": "list",
    "List": "list",
    "tuple": "list",
    "dict": "dict",
    "Dict": "dict",
    "torch.dtype": "unwritable",
}


def read_facts(folder: Path, version: str, torch_folder: Path | None = None) -> DeepSpeedFacts:
    """The facts of the version whose sources are in `folder`, and the optimizers of the torch whose sources are in
    `torch_folder`. A file that a version lacks contributes nothing."""
    trees = {name: tree for name in _files() if (tree := _parse(folder / name)) is not None}
    constants = _constants(folder, trees)
    blocks = {
        path: block
        for path, (file, name) in CLASSES.items()
        if file in trees
        for path, block in _class_blocks(trees, file, name, path, constants)
    }
    looked_up: dict[str, set[str]] = {"": {path for path in blocks if "." not in path}}
    for file, names in _READERS:
        if file in trees:
            for path, key in _lookups(trees[file], names, constants):
                looked_up.setdefault(path, set()).add(key)
    looked_up[""] |= _monitors(trees)
    for path in (*looked_up, *blocks):
        owner, _, name = path.rpartition(".")
        if name and owner not in blocks:
            looked_up.setdefault(owner, set()).add(name)
    removed = _removed(trees, constants)
    for path, keys in looked_up.items():
        keys.difference_update(key for key in list(keys) if (f"{path}.{key}" if path else key) in removed)
        if path not in blocks and not _is_open(path):
            blocks[path] = ConfigBlock(path=path, strict=False, keys=tuple(sorted(keys)))
    torch_optimizers, torch_schedulers = _torch_classes(torch_folder)
    classes = {name: found for file in _OPTIMIZERS for name, found in _signatures(_parse(folder / file)).items()}
    return DeepSpeedFacts(
        version=version,
        blocks=tuple(blocks.values()),
        removed=removed,
        optimizers=tuple(constants.get("DEEPSPEED_OPTIMIZERS", ())),
        optimizer_classes=classes,
        schedulers=_signatures(trees.get("runtime/lr_schedules.py")),
        torch_optimizers=torch_optimizers,
        torch_schedulers=torch_schedulers,
    )


def _files() -> set[str]:
    return (
        {file for file, _ in _READERS}
        | {file for file, _ in CLASSES.values()}
        | {
            "runtime/lr_schedules.py",
            "runtime/zero/offload_config.py",
            "runtime/zero/leaf_module_config.py",
            "runtime/zenflow/zenflow_config.py",
        }
    )


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _constants(folder: Path, trees: dict[str, ast.Module]) -> dict[str, Any]:
    """Every module-level NAME = literal of the files that are read and of the `constants.py` beside them."""
    found: dict[str, Any] = {}
    beside = {f"{Path(name).parent}/constants.py" for name in trees} - set(trees)
    modules = [tree for name in sorted(beside) if (tree := _parse(folder / name)) is not None]
    for tree in (*modules, *trees.values()):
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                value = _literal(node.value, found)
                if value is not _UNKNOWN:
                    found[node.targets[0].id] = value
    return found


class _Unknown:
    """A value that only running the code would tell."""


_UNKNOWN = _Unknown()


def _literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    """The value of a literal, a known name, `pp_int(x)`, a product, or a list of these; else _UNKNOWN."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, _UNKNOWN)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pp_int" and node.args:
        value = _literal(node.args[0], constants)
        return int(value) if isinstance(value, int | float) else _UNKNOWN
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.maxsize":
        return 2**63 - 1
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        left, right = _literal(node.left, constants), _literal(node.right, constants)
        if isinstance(left, int) and isinstance(right, int):
            return left * right if isinstance(node.op, ast.Mult) else left**right if right < 64 else _UNKNOWN
    if isinstance(node, ast.List | ast.Tuple):
        items = [_literal(item, constants) for item in node.elts]
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    try:
        return ast.literal_eval(node) if node is not None else _UNKNOWN
    except ValueError:
        return _UNKNOWN


def _class_blocks(
    trees: dict[str, ast.Module], file: str, name: str, path: str, constants: dict[str, Any]
) -> Iterator[tuple[str, ConfigBlock]]:
    """The block of a class, and those of the classes that its fields hold."""
    found = _find_class(trees, file, name)
    if found is None:
        return
    fields = []
    for node in _annotations(trees, file, found):
        field = _field(trees, file, path, node, constants)
        fields.append(field)
        if field.block:
            yield from _class_blocks(trees, file, _class_name(node.annotation), field.block, constants)
    yield path, ConfigBlock(path=path, strict=True, fields=tuple(fields))


def _annotations(trees: dict[str, ast.Module], file: str, found: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """The fields of a class and of those that it extends; of a field that stands in both, its own."""
    own = [node for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    names = {ast.unparse(node.target) for node in own}
    for base in found.bases:
        owner = _find_class(trees, file, ast.unparse(base))
        for node in _annotations(trees, file, owner) if owner is not None else ():
            if ast.unparse(node.target) not in names:
                yield node
    yield from own


def _find_class(trees: dict[str, ast.Module], file: str, name: str) -> ast.ClassDef | None:
    for tree in (trees[file], *trees.values()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
    return None


def _class_name(annotation: ast.expr) -> str:
    """The class in `Class` or `Optional[Class]`."""
    inner = annotation.slice if isinstance(annotation, ast.Subscript) else annotation
    return inner.id if isinstance(inner, ast.Name) else ""


def _field(
    trees: dict[str, ast.Module], file: str, path: str, node: ast.AnnAssign, constants: dict[str, Any]
) -> ConfigField:
    assert isinstance(node.target, ast.Name)
    name, call = node.target.id, node.value
    options: dict[str, ast.expr] = {}
    default: ast.expr | None = call
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Field":
        options = {option.arg: option.value for option in call.keywords if option.arg}
        default = call.args[0] if call.args else options.get("default")
    value = _literal(default, constants)
    known = value is not _UNKNOWN
    alias = _literal(options.get("alias"), constants)
    owner = _find_class(trees, file, _class_name(node.annotation))
    is_block = owner is not None and any(ast.unparse(base) == "DeepSpeedConfigModel" for base in owner.bases)
    shown = alias if isinstance(alias, str) else name
    extra = _extra(options.get("json_schema_extra"), constants)
    successor = extra.get("new_param", "")
    bounds = tuple(
        (sign, float(_literal(options[sign], constants))) for sign in ("gt", "ge", "lt", "le") if sign in options
    )
    return ConfigField(
        name=name,
        alias=alias if isinstance(alias, str) else "",
        bounds=bounds,
        type=FieldType(name="dict", optional=_is_optional(node.annotation))
        if is_block
        else _type(trees, file, node.annotation, constants),
        default=value if known and not is_block else None,
        default_known=known,
        block=f"{path}.{shown}" if is_block else "",
        deprecated=bool(extra.get("deprecated")),
        successor=successor if isinstance(successor, str) else "",
        moves=bool(successor) and extra.get("set_new_param", True) is not False,
    )


def _extra(node: ast.expr | None, constants: dict[str, Any]) -> dict[str, Any]:
    """The literal entries of `json_schema_extra`; the functions among them stay unread."""
    if not isinstance(node, ast.Dict):
        return {}
    pairs = (
        (_literal(key, constants), _literal(value, constants))
        for key, value in zip(node.keys, node.values, strict=True)
    )
    return {key: value for key, value in pairs if value is not _UNKNOWN}


def _is_optional(annotation: ast.expr) -> bool:
    return isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional"


def _type(trees: dict[str, ast.Module], file: str, annotation: ast.expr, constants: dict[str, Any]) -> FieldType:
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value)
        if outer == "Optional":
            inner = _type(trees, file, annotation.slice, constants)
            return FieldType(name=inner.name, optional=True, choices=inner.choices, parts=inner.parts)
        if outer == "Literal":
            options = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            return FieldType(name="literal", choices=tuple(_literal(option, constants) for option in options))
        if outer == "Union" and isinstance(annotation.slice, ast.Tuple):
            return FieldType(
                name="union", parts=tuple(_type(trees, file, part, constants) for part in annotation.slice.elts)
            )
        item = _type(trees, file, annotation.slice, constants) if outer == "List" else None
        return FieldType(name=_PLAIN.get(outer, "any"), parts=(item,) if item else ())
    name = ast.unparse(annotation)
    if name in _PLAIN:
        return FieldType(name=_PLAIN[name])
    found = _find_class(trees, file, name)
    if found is not None and any(ast.unparse(base) == "Enum" for base in found.bases):
        values = [_literal(node.value, constants) for node in found.body if isinstance(node, ast.Assign)]
        return FieldType(
            name="choice", choices=tuple(dict.fromkeys(value for value in values if value is not _UNKNOWN))
        )
    alias = next(
        (
            node.value
            for node in trees[file].body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == name
            and isinstance(node.value, ast.Subscript)
        ),
        None,
    )
    return _type(trees, file, alias, constants) if alias is not None else FieldType(name="any")


def _lookups(tree: ast.Module, names: dict[str, str], constants: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(path of the block, key) of every look-up in a dictionary whose place is known."""
    places = dict(names)
    constants = constants | _argument_defaults(tree, constants)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            place = _place(node.value, places, constants)
            if place and node.targets[0].id not in places:
                places[node.targets[0].id] = place
    for node in ast.walk(tree):
        found = _looked_up(node)
        if found is None:
            continue
        owner, key = _place(found[0], places, constants), _literal(found[1], constants)
        if owner is not None and isinstance(key, str):
            yield owner, key


def _argument_defaults(tree: ast.Module, constants: dict[str, Any]) -> dict[str, str]:
    """Text that arguments have by default: `get_communication_data_type(param_dict,
    comm_type=COMMUNICATION_DATA_TYPE)`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.args.defaults:
            for argument, default in zip(node.args.args[-len(node.args.defaults) :], node.args.defaults, strict=True):
                value = _literal(default, constants)
                if isinstance(value, str):
                    found[argument.arg] = value
    return found


def _looked_up(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(dictionary, key) of `d[k]`, `d.get(k)`, `k in d`, `k in d.keys()` and `get_scalar_param(d, k, ...)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.value, node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return node.func.value, node.args[0]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _GETTERS
        and len(node.args) > 1
    ):
        return node.args[0], node.args[1]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In):
        where = node.comparators[0]
        if isinstance(where, ast.Call) and isinstance(where.func, ast.Attribute) and where.func.attr == "keys":
            where = where.func.value
        return where, node.left
    return None


def _place(node: ast.expr, places: dict[str, str], constants: dict[str, Any]) -> str | None:
    """The path of the block that an expression holds, None if it holds none."""
    if ast.unparse(node) in places:
        return places[ast.unparse(node)]
    found = _looked_up(node)
    if found is None or isinstance(node, ast.Compare):
        return None
    owner, key = _place(found[0], places, constants), _literal(found[1], constants)
    if owner is None or not isinstance(key, str):
        return None
    return f"{owner}.{key}" if owner else key


def _is_open(path: str) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in _OPEN)


def _monitors(trees: dict[str, ast.Module]) -> set[str]:
    """The blocks that `get_monitor_config` takes in a loop over their names."""
    file, function = _TOP_LEVEL_TUPLE
    found = (
        [node for node in ast.walk(trees[file]) if isinstance(node, ast.FunctionDef) and node.name == function]
        if file in trees
        else []
    )
    return {
        item.value
        for node in found
        for part in ast.walk(node)
        if isinstance(part, ast.Tuple)
        for item in part.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


def _removed(trees: dict[str, ast.Module], constants: dict[str, Any]) -> dict[str, str]:
    """Keys that `_reject_removed_config_keys` refuses, and what it says."""
    removed: dict[str, str] = {}
    for prefix, name in (("", "_REMOVED_TOP_LEVEL_CONFIG_KEYS"), ("zero_optimization.", "_REMOVED_ZERO_CONFIG_KEYS")):
        for node in trees["runtime/config.py"].body if "runtime/config.py" in trees else ():
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == name
                and isinstance(node.value, ast.Dict)
            ):
                for key, text in zip(node.value.keys, node.value.values, strict=True):
                    removed[prefix + str(_literal(key, constants))] = _text(text, constants)
    return removed


def _text(node: ast.expr, constants: dict[str, Any]) -> str:
    """A string or an f-string of constants."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return str(_literal(node.value, constants))
    return str(_literal(node, constants))


def _signatures(tree: ast.Module | None) -> dict[str, tuple[Parameter, ...]]:
    """Each class of a module with the arguments that a configuration can give it: all but `self` and the first one,
    which is the optimizer or its parameters."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for node in (node for node in (tree.body if tree is not None else ()) if isinstance(node, ast.ClassDef)):
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                names = [argument.arg for argument in function.args.args]
                optional = names[len(names) - len(function.args.defaults) :] if function.args.defaults else []
                keywords = [argument.arg for argument in function.args.kwonlyargs]
                found[node.name] = tuple(
                    Parameter(name=name, required=name not in optional and name not in keywords)
                    for name in names[2:] + keywords
                )
    return found


def _torch_classes(folder: Path | None) -> tuple[dict[str, tuple[Parameter, ...]], dict[str, tuple[Parameter, ...]]]:
    """torch.optim's optimizers and schedulers with their arguments; nothing without torch."""
    if folder is None:
        return {}, {}
    optimizers: dict[str, tuple[Parameter, ...]] = {}
    for file in sorted((folder / "optim").glob("[a-z]*.py")):
        if file.stem not in ("lr_scheduler", "optimizer", "swa_utils"):
            optimizers |= {name: found for name, found in _signatures(_parse(file)).items() if not name.startswith("_")}
    schedulers = _signatures(_parse(folder / "optim" / "lr_scheduler.py"))
    return optimizers, {name: found for name, found in schedulers.items() if not name.startswith("_")}
