"""Facts of a DeepSpeed version, parsed from its sources without running them.

`class_blocks`: the blocks that pydantic classes check, with fields, types, defaults and deprecations. `looked_up_keys`:
the keys that other code looks up by name. `signatures`: the arguments of optimizers and schedulers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .facts import ConfigBlock, ConfigField, DeepSpeedFacts, FieldType, Parameter, Signatures


class _Unknown:
    """A value that only running the code would tell."""


UNKNOWN = _Unknown()


class ParsedSources:
    """Some files of a package, by their paths in it; files that are missing or cannot be parsed are left out."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self.folder = folder
        self.trees = {name: tree for name in files if (tree := parse(folder / name)) is not None}
        self.constants = self._constants()

    def _constants(self) -> dict[str, Any]:
        """Every module-level NAME = literal of the files and of the `constants.py` in their folders."""
        constants: dict[str, Any] = {}
        beside = {f"{Path(name).parent}/constants.py" for name in self.trees} - set(self.trees)
        modules = [tree for name in sorted(beside) if (tree := parse(self.folder / name)) is not None]
        for tree in (*modules, *self.trees.values()):
            for name, value in assignments(tree):
                if (known := literal(value, constants)) is not UNKNOWN:
                    constants[name] = known
        return constants

    def functions(self, file: str, name: str) -> list[ast.FunctionDef]:
        """The functions of this name in a file, none in a file that was not read."""
        body = self.trees[file].body if file in self.trees else []
        return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]

    def literal(self, node: ast.expr | None) -> Any:
        return literal(node, self.constants)

    def find_class(self, file: str, name: str) -> ast.ClassDef | None:
        """The class of this name in a file, else in any other that was read."""
        for tree in (self.trees[file], *self.trees.values()):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
        return None


def parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def assignments(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) of each NAME = expression of a module or class."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    """The value of a literal, a known name, `pp_int(x)`, a product, or a list of these; else UNKNOWN."""
    match node:
        case None:
            return UNKNOWN
        case ast.Name(id=name):
            return constants.get(name, UNKNOWN)
        case ast.Call(func=ast.Name(id="pp_int"), args=[first, *_]):
            value = literal(first, constants)
            return int(value) if isinstance(value, int | float) else UNKNOWN
        case ast.Attribute(value=ast.Name(id="sys"), attr="maxsize"):
            return 2**63 - 1
        case ast.BinOp(op=ast.Mult() | ast.Pow() as operator):
            left, right = literal(node.left, constants), literal(node.right, constants)
            if isinstance(left, int) and isinstance(right, int):
                return left * right if isinstance(operator, ast.Mult) else left**right if right < 64 else UNKNOWN
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = [literal(item, constants) for item in items]
            return UNKNOWN if any(value is UNKNOWN for value in values) else values
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


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

_CLASS_FILES = {file for file, _ in CLASSES.values()} | {
    "runtime/zero/offload_config.py",
    "runtime/zero/leaf_module_config.py",
    "runtime/zenflow/zenflow_config.py",
}

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


def class_blocks(sources: ParsedSources) -> dict[str, ConfigBlock]:
    """Path -> block, of every block that a class checks, nested ones too."""
    return {
        block.path: block
        for path, (file, name) in CLASSES.items()
        if file in sources.trees
        for block in _ClassReader(sources, file).blocks(name, path)
    }


class _ClassReader:
    """Reads classes that one file names; another may define them."""

    def __init__(self, sources: ParsedSources, file: str) -> None:
        self._sources, self._file = sources, file

    def blocks(self, name: str, path: str) -> Iterator[ConfigBlock]:
        """The block of a class, and those of the classes that its fields hold."""
        class_node = self._find(name)
        if class_node is None:
            return
        fields = []
        for node, text in self._annotations(class_node):
            field = self._field(node, path, text)
            fields.append(field)
            if field.block:
                yield from self.blocks(_class_name(node.annotation), field.block)
        yield ConfigBlock(path=path, strict=True, fields=tuple(fields))

    def _find(self, name: str) -> ast.ClassDef | None:
        return self._sources.find_class(self._file, name)

    def _annotations(self, class_node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, ast.stmt | None]]:
        """The fields of a class and of its bases, each with the statement that follows it; its own definition of a
        field comes first."""
        own = [
            (node, following)
            for node, following in zip_longest(class_node.body, class_node.body[1:])
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        names = {ast.unparse(node.target) for node, _ in own}
        for base in class_node.bases:
            owner = self._find(ast.unparse(base))
            for node, following in self._annotations(owner) if owner is not None else ():
                if ast.unparse(node.target) not in names:
                    yield node, following
        yield from own

    def _field(self, node: ast.AnnAssign, path: str, following: ast.stmt | None) -> ConfigField:
        name, default = ast.unparse(node.target), node.value
        options: dict[str, ast.expr] = {}
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
            options = {option.arg: option.value for option in default.keywords if option.arg}
            default = default.args[0] if default.args else options.get("default")
        known = self._sources.literal
        value, alias = known(default), known(options.get("alias"))
        alias = alias if isinstance(alias, str) else ""
        owner = self._find(_class_name(node.annotation))
        is_block = owner is not None and any(ast.unparse(base) == "DeepSpeedConfigModel" for base in owner.bases)
        extra = self._extra(options.get("json_schema_extra"))
        successor = extra.get("new_param", "")
        optional = isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "Optional"
        dictionary = FieldType(name="dict", optional=optional)
        return ConfigField(
            name=name,
            alias=alias,
            bounds=tuple((sign, float(known(options[sign]))) for sign in ("gt", "ge", "lt", "le") if sign in options),
            type=dictionary if is_block else self._type(node.annotation),
            default=None if is_block or value is UNKNOWN else value,
            default_known=value is not UNKNOWN,
            description=_description(following) or _words(known(options.get("description"))),
            block=f"{path}.{alias or name}" if is_block else "",
            deprecated=bool(extra.get("deprecated")),
            successor=successor if isinstance(successor, str) else "",
            moves=bool(successor) and extra.get("set_new_param", True) is not False,
        )

    def _extra(self, node: ast.expr | None) -> dict[str, Any]:
        """The literal entries of `json_schema_extra`; the functions among them stay unread."""
        if not isinstance(node, ast.Dict):
            return {}
        pairs = zip(map(self._sources.literal, node.keys), map(self._sources.literal, node.values), strict=True)
        return {key: value for key, value in pairs if value is not UNKNOWN}

    def _type(self, annotation: ast.expr) -> FieldType:
        if isinstance(annotation, ast.Subscript):
            return self._generic_type(ast.unparse(annotation.value), annotation.slice)
        name = ast.unparse(annotation)
        if name in _PLAIN:
            return FieldType(name=_PLAIN[name])
        class_node = self._find(name)
        if class_node is not None and any(ast.unparse(base) == "Enum" for base in class_node.bases):
            values = [self._sources.literal(value) for _, value in assignments(class_node)]
            known = dict.fromkeys(value for value in values if value is not UNKNOWN)
            return FieldType(name="choice", choices=tuple(known))
        for alias, value in assignments(self._sources.trees[self._file]):
            if alias == name and isinstance(value, ast.Subscript):
                return self._type(value)
        return FieldType(name="any")

    def _generic_type(self, outer: str, inside: ast.expr) -> FieldType:
        """`Optional[...]`, `Literal[...]`, `Union[...]`, `List[...]`, `Dict[...]`."""
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        match outer:
            case "Optional":
                return replace(self._type(inside), optional=True)
            case "Literal":
                return FieldType(name="literal", choices=tuple(map(self._sources.literal, parts)))
            case "Union":
                return FieldType(name="union", parts=tuple(map(self._type, parts)))
            case "List":
                return FieldType(name="list", parts=(self._type(inside),))
        return FieldType(name=_PLAIN.get(outer, "any"))


def _description(node: ast.stmt | None) -> str:
    """The words of a string that stands alone."""
    return _words(node.value.value) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""


def _words(text: Any) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""


def _class_name(annotation: ast.expr) -> str:
    """The class in `Class` or `Optional[Class]`."""
    inner = annotation.slice if isinstance(annotation, ast.Subscript) else annotation
    return inner.id if isinstance(inner, ast.Name) else ""


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
    sources = ParsedSources(folder, _CLASS_FILES | _LOOKUP_FILES | {_SCHEDULERS})
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
