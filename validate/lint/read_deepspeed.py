"""Facts of a DeepSpeed version, parsed from its sources without running them.

Blocks with a pydantic class yield fields, types, defaults and deprecations; other blocks the keys that the code looks
up by name; optimizers and schedulers their arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .facts import ConfigBlock, ConfigField, DeepSpeedFacts, Parameter, Signatures
from .values import FieldType

UNKNOWN = object()
"""A value that is known only by running the code."""

_MARKUP = r"(?::\w+:|`)`([^`]*)`+"
"""reStructuredText in descriptions: a role, or code."""

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
"""Block -> the file and class that validate it."""

_FILES = (
    *sorted({file for file, _ in CLASSES.values()}),
    "runtime/zero/offload_config.py",
    "runtime/zero/leaf_module_config.py",
    "runtime/zenflow/zenflow_config.py",
    "__init__.py",
    "runtime/activation_checkpointing/config.py",
    "runtime/swap_tensor/aio_config.py",
    "runtime/model_checkpointing/config.py",
    "profiling/config.py",
    "autotuning/config.py",
    "datastates/config.py",
    "nebula/config.py",
)

_HOLDERS = {
    "param_dict": "",
    "self._param_dict": "",
    "ds_config": "",
    "config": "",
    "checkpoint_params": "checkpoint",
    "checkpoint_dict": "checkpoint",
    "writer_dict": "checkpoint.writer",
    "data_types_params": "data_types",
    "act_chkpt_config_dict": "activation_checkpointing",
    "flops_profiler_dict": "flops_profiler",
    "autotuning_dict": "autotuning",
}
"""Names of variables that hold a part of the configuration -> the path of that part."""

_GETTERS = ("get_scalar_param", "get_dict_param", "get_list_param")

_PARTS = ("autotuning/config.py", "runtime/model_checkpointing/config.py")
"""Files whose `param_dict` is not the whole configuration."""

_OTHER_KEYS = {
    "communication_data_type": UNKNOWN,  # runtime/config.py get_communication_data_type: the default of an argument
    "seq_parallel_communication_data_type": "fp32",
    "data_efficiency": UNKNOWN,  # runtime/data_pipeline/config.py: deeper levels under the same name
    "compression_training": UNKNOWN,  # this and the next: before 0.19.7, in separate files
    "curriculum_learning": UNKNOWN,
    "elasticity": UNKNOWN,
}
"""Keys of the top level that are looked up in other ways."""

_OPTIMIZERS = (
    "ops/adam/fused_adam.py",
    "ops/adam/cpu_adam.py",
    "ops/lion/fused_lion.py",
    "ops/lion/cpu_lion.py",
    "ops/adagrad/cpu_adagrad.py",
    "ops/lamb/fused_lamb.py",
)

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
"""Blocks with keys that are not read here: arguments of a class, or deeper levels."""

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
    """The facts of the DeepSpeed sources in `folder`, and the optimizers of the torch sources in
    `torch_folder`. A file that a version lacks contributes nothing."""
    sources = _Sources(folder)
    blocks = {
        block.path: block
        for path, (file, name) in CLASSES.items()
        if file in sources.trees
        for block in sources.class_blocks(name, path)
    }
    keys = sources.looked_up_keys()
    # Blocks with a class are keys of the top level, however the code looks them up.
    keys[""] |= dict.fromkeys((path for path in blocks if "." not in path), UNKNOWN) | _OTHER_KEYS
    # A nested block is also a key of its owner.
    for path in (*keys, *blocks):
        owner, _, name = path.rpartition(".")
        if name and owner not in blocks:
            keys.setdefault(owner, {}).setdefault(name, UNKNOWN)
    zero = sources.constants.get("_REMOVED_ZERO_CONFIG_KEYS", {})
    removed = sources.constants.get("_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}) | {
        f"zero_optimization.{name}": message for name, message in zero.items()
    }
    for path, names in keys.items():
        if path not in blocks and not any(path == name or path.startswith(f"{name}.") for name in _OPEN):
            left = sorted(name for name in names if (f"{path}.{name}" if path else name) not in removed)
            defaults = {name: names[name] for name in left if names[name] is not UNKNOWN}
            blocks[path] = ConfigBlock(path=path, strict=False, keys=tuple(left), defaults=defaults)
    optim = torch_folder / "optim" if torch_folder else Path("without torch")
    return DeepSpeedFacts(
        version=version,
        blocks=tuple(blocks.values()),
        removed=removed,
        optimizers=tuple(sources.constants.get("DEEPSPEED_OPTIMIZERS", ())),
        optimizer_classes=_signatures(*(folder / file for file in _OPTIMIZERS)),
        schedulers=_signatures(folder / "runtime/lr_schedules.py"),
        torch_optimizers=_optimizers_of_torch(optim),
        torch_schedulers=_signatures(optim / "lr_scheduler.py"),
    )


class _Sources:
    """The parsed source files, without those that are missing or cannot be parsed."""

    def __init__(self, folder: Path) -> None:
        self.trees = {name: tree for name in _FILES if (tree := _parse(folder / name)) is not None}
        # Names of keys and their defaults are constants of the same folder.
        folders = sorted({Path(name).parent for name in self.trees})
        modules = [tree for each in folders if (tree := _parse(folder / each / "constants.py")) is not None]
        self.constants: dict[str, Any] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.Subscript] = {}
        """Type aliases by name."""
        for tree in (*modules, *self.trees.values()):
            self.classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
            for name, value in _assignments(tree):
                if isinstance(value, ast.Subscript):
                    self.aliases[name] = value
                elif (known := self.literal(value)) is not UNKNOWN:
                    self.constants[name] = known

    def literal(self, node: ast.expr | None) -> Any:
        """The value of a literal, a known name, `pp_int(x)`, a product, an f-string or a list of these, the known
        entries of a dictionary; else UNKNOWN."""
        match node:
            case None:
                return UNKNOWN
            case ast.Name(id=name):
                return self.constants.get(name, UNKNOWN)
            case ast.Call(func=ast.Name(id="pp_int"), args=[first, *_]):
                value = self.literal(first)
                return int(value) if isinstance(value, int | float) else UNKNOWN
            case ast.Attribute(value=ast.Name(id="sys"), attr="maxsize"):
                return 2**63 - 1
            case ast.BinOp(op=ast.Mult() | ast.Pow() as operator):
                left, right = self.literal(node.left), self.literal(node.right)
                # Defaults such as 2**20; a large exponent would be a huge number.
                if isinstance(left, int) and isinstance(right, int):
                    return left * right if isinstance(operator, ast.Mult) else left**right if right < 64 else UNKNOWN
            case ast.JoinedStr(values=parts):
                return "".join(str(self.literal(part)) for part in parts)
            case ast.FormattedValue(value=inner):
                return self.literal(inner)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                values = [self.literal(item) for item in items]
                return UNKNOWN if any(value is UNKNOWN for value in values) else values
            case ast.Dict(keys=keys, values=entries):
                pairs = zip(map(self.literal, keys), map(self.literal, entries), strict=True)
                return {key: value for key, value in pairs if UNKNOWN not in (key, value)}
        try:
            # Also negative numbers and sets.
            return ast.literal_eval(node)
        except ValueError:
            return UNKNOWN

    def class_blocks(self, name: str, path: str) -> Iterator[ConfigBlock]:
        """The blocks of a class and of the classes of its fields."""
        if name not in self.classes:
            return
        fields = []
        for node, following in self._annotations(name):
            field = self._field(node, path, following)
            fields.append(field)
            if field.block:
                yield from self.class_blocks(_class_name(node.annotation), field.block)
        yield ConfigBlock(path=path, strict=True, fields=tuple(fields))

    def _annotations(self, name: str) -> Iterator[tuple[ast.AnnAssign, ast.stmt | None]]:
        """The fields of a class and its bases, each with the following statement. The class's own definition of a field
        replaces that of a base."""
        if name not in self.classes:
            return
        node = self.classes[name]
        own = [
            (field, following)
            for field, following in zip_longest(node.body, node.body[1:])
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ]
        names = {ast.unparse(field.target) for field, _ in own}
        # In pydantic a field of a subclass replaces that of its base.
        for base in node.bases:
            for field, following in self._annotations(ast.unparse(base)):
                if ast.unparse(field.target) not in names:
                    yield field, following
        yield from own

    def _field(self, node: ast.AnnAssign, path: str, following: ast.stmt | None) -> ConfigField:
        name, default = ast.unparse(node.target), node.value
        options: dict[str, ast.expr] = {}
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
            options = {option.arg: option.value for option in default.keywords if option.arg}
            # Field(default, ...) or Field(default=...).
            default = default.args[0] if default.args else options.get("default")
        known = {option: value for option, node in options.items() if (value := self.literal(node)) is not UNKNOWN}
        value, alias = self.literal(default), known.get("alias", "")
        is_block = self._derives(_class_name(node.annotation), "DeepSpeedConfigModel")
        # DeepSpeed's mark of a deprecated field (runtime/config_utils.py _process_deprecated_field).
        extra = known.get("json_schema_extra", {})
        successor = extra.get("new_param", "")
        optional = isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "Optional"
        words = known.get("description", "")
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            words = following.value.value  # a string expression describes the field above it
        kind = FieldType(name="dict", optional=optional) if is_block else self._type(node.annotation)
        bounds = tuple((sign, float(known[sign])) for sign in ("gt", "ge", "lt", "le") if sign in known)
        return ConfigField(
            name=name,
            alias=alias,
            type=replace(kind, bounds=bounds) if bounds else kind,
            default=None if is_block or value is UNKNOWN else value,
            default_known=value is not UNKNOWN,
            description=re.sub(_MARKUP, r"\1", " ".join(str(words).split())),
            block=f"{path}.{alias or name}" if is_block else "",
            deprecated=bool(extra.get("deprecated")),
            successor=successor,
            moves=bool(successor) and extra.get("set_new_param", True) is not False,
        )

    def _derives(self, name: str, base: str) -> bool:
        return name in self.classes and any(ast.unparse(each) == base for each in self.classes[name].bases)

    def _type(self, annotation: ast.expr) -> FieldType:
        if isinstance(annotation, ast.Subscript):
            inside = annotation.slice
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            match outer := ast.unparse(annotation.value):
                case "Optional":
                    return replace(self._type(inside), optional=True)
                case "Literal":
                    return FieldType(name="literal", choices=tuple(map(self.literal, parts)))
                case "Union":
                    return FieldType(name="union", parts=tuple(map(self._type, parts)))
                case "List":
                    return FieldType(name="list", parts=(self._type(inside),))
            return FieldType(name=_PLAIN.get(outer, "any"))
        name = ast.unparse(annotation)
        if self._derives(name, "Enum"):
            values = [self.literal(value) for _, value in _assignments(self.classes[name])]
            return FieldType(
                name="choice", choices=tuple(dict.fromkeys(value for value in values if value is not UNKNOWN))
            )
        return self._type(self.aliases[name]) if name in self.aliases else FieldType(name=_PLAIN.get(name, "any"))

    def looked_up_keys(self) -> dict[str, dict[str, Any]]:
        """Path of a block -> keys that the code looks up in it, with defaults: NAME_DEFAULT is the default of the key
        in NAME."""
        keys: dict[str, dict[str, Any]] = {"": {}}
        for file, tree in self.trees.items():
            # A parameter named param_dict is the whole configuration, but for `_PARTS` only its own block.
            places = {name: path for name, path in _HOLDERS.items() if path or file not in _PARTS}
            # Two passes: a variable may be used above the function that assigns it.
            nodes = list(ast.walk(tree))
            for node in nodes:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if place := self._place(value, places):
                        places.setdefault(name, place)
            for node in nodes:
                if (found := _lookup(node)) is None:
                    continue
                owner, key = self._place(found[0], places), self.literal(found[1])
                if owner is not None and isinstance(key, str):
                    # DeepSpeed's convention: FP16_ENABLED and FP16_ENABLED_DEFAULT.
                    default = self.constants.get(f"{ast.unparse(found[1])}_DEFAULT", UNKNOWN)
                    # Several look-ups of a key: the one with a known default counts.
                    if keys.setdefault(owner, {}).get(key, UNKNOWN) is UNKNOWN:
                        keys[owner][key] = UNKNOWN if isinstance(default, dict) else default
        return keys

    def _place(self, node: ast.expr, places: dict[str, str]) -> str | None:
        """The path of the block that an expression holds; None if it holds none."""
        if ast.unparse(node) in places:
            return places[ast.unparse(node)]
        found = _lookup(node)
        if found is None or isinstance(node, ast.Compare):
            return None
        owner, key = self._place(found[0], places), self.literal(found[1])
        if owner is None or not isinstance(key, str):
            return None
        return f"{owner}.{key}" if owner else key


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _assignments(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) of each NAME = expression in a module or class."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _class_name(annotation: ast.expr) -> str:
    """The name of the class in `Class` or `Optional[Class]`."""
    inner = annotation.slice if isinstance(annotation, ast.Subscript) else annotation
    return inner.id if isinstance(inner, ast.Name) else ""


def _lookup(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(dictionary, key) of `d[k]`, `d.get(k)`, `k in d`, `k not in d.keys()` and `get_scalar_param(d, k, ...)`."""
    match node:
        # Not `d[k] = value`, which adds a key of DeepSpeed's own.
        case ast.Subscript(ctx=ast.Load()):
            return node.value, node.slice
        case ast.Call(func=ast.Attribute(attr="get", value=owner), args=[key, *_]):
            return owner, key
        case ast.Call(func=ast.Name(id=name), args=[owner, key, *_]) if name in _GETTERS:
            return owner, key
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[owner]):
            if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute) and owner.func.attr == "keys":
                owner = owner.func.value
            return owner, node.left
    return None


def _optimizers_of_torch(optim: Path) -> Signatures:
    """The optimizers that `getattr(torch.optim, name)` finds: the classes that its `__init__` imports, some from
    private files (torch 2.13 `_adafactor.py`)."""
    imports = [node for node in getattr(_parse(optim / "__init__.py"), "body", ()) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names} - {"Optimizer"}
    files = sorted(optim.glob("*.py"), key=lambda file: file.stem.lstrip("_"))
    return {name: taken for name, taken in _signatures(*files).items() if name in names}


def _signatures(*files: Path) -> Signatures:
    """Each public class of these files with its arguments, without `self` and the first one (the optimizer or its
    parameters)."""
    return {
        node.name: _parameters(function.args)
        for file in files
        for node in getattr(_parse(file), "body", ())
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    }


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    names = [argument.arg for argument in arguments.args]
    # Defaults belong to the last arguments.
    required = names[: len(names) - len(arguments.defaults)]
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    given = [*arguments.defaults, *arguments.kw_defaults][::-1]
    defaults = {name: _argument_default(node) for name, node in zip((names + keywords)[::-1], given, strict=False)}
    return tuple(
        Parameter(name=name, required=name in required and name not in keywords, default=defaults.get(name))
        for name in names[2:] + keywords
    )


def _argument_default(node: ast.expr | None) -> Any:
    """A literal as JSON has it: a tuple as a list. None for any other default."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return [*value] if isinstance(value, tuple) else value
