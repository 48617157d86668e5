"""Python sources parsed without running them (`ParsedSources`), and the blocks of a configuration that DeepSpeed's
pydantic classes check, read from such sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .facts import ConfigBlock, ConfigField, FieldType


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
        missing = {f"{Path(name).parent}/constants.py" for name in self.trees} - set(self.trees)
        modules = [tree for name in sorted(missing) if (tree := parse(self.folder / name)) is not None]
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

CLASS_FILES = {file for file, _ in CLASSES.values()} | {
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
