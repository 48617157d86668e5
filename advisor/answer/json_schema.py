"""A JSON Schema from a `TypedDict` or a dataclass: names, types, and the strings under the fields as descriptions."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    Path: {"type": "string"},
    Any: {},
}


def schema_of(types: Sequence[type], *, without: Sequence[str] = ()) -> Schema:
    """One object that has the fields of all these types, but for some; classes within are definitions of their own.

    New fields may be added to an object without a new version, so unknown ones are allowed.
    """
    definitions: dict[str, Schema] = {}
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for one in types:
        own = _object(one, definitions)
        properties |= {name: value for name, value in own["properties"].items() if name not in without}
        required += [name for name in own["required"] if name not in without]
    whole: Schema = {"type": "object", "properties": properties, "required": required}
    return whole | ({"$defs": definitions} if definitions else {})


def _object(kind: type, definitions: dict[str, Schema]) -> Schema:
    names_of_module = vars(sys.modules[kind.__module__])
    hints = get_type_hints(kind, localns=names_of_module)
    marked = get_type_hints(kind, localns=names_of_module, include_extras=True)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(hints)
    optional = {name for name, hint in marked.items() if get_origin(hint) is NotRequired}
    said = _descriptions(kind)
    if is_dataclass(kind):
        said |= {field.name: field.metadata["key"]["meaning"] for field in fields(kind) if "key" in field.metadata}
    properties = {}
    for name in names:
        description = {"description": said[name]} if name in said else {}
        properties[name] = _type(hints[name], definitions) | description
    return {"type": "object", "properties": properties, "required": [name for name in names if name not in optional]}


def _type(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a field's type."""
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if is_typeddict(hint) or is_dataclass(hint):
        name = hint.__name__.removesuffix("Json")
        if name not in definitions:
            definitions[name] = {}  # a class that holds itself finds its place taken
            definitions[name] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return _union([_type(argument, definitions) for argument in arguments])
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_type(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _type(arguments[0], definitions)}
    raise TypeError(f"no JSON Schema is known for {hint}")


def _union(kinds: list[Schema]) -> Schema:
    """Plain types stand together in one list."""
    if all(list(kind) == ["type"] for kind in kinds):
        return {"type": [kind["type"] for kind in kinds]}
    return {"anyOf": kinds}


def _descriptions(kind: type) -> dict[str, str]:
    """The strings that stand under the fields of a class."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, SyntaxError):  # no source, as in a frozen program
        return {}
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    last = ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[last] = " ".join(str(node.value.value).split())
        else:
            last = ""
    return found
