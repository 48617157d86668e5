"""The part of JSON Schema that the project's schemas use."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def wrong(value: Any, form: Any, whole: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value is not as the schema says, with every field that the schema does not know."""
    if form in (True, {}):
        return []
    if "$ref" in form:
        return wrong(value, whole["$defs"][form["$ref"].rpartition("/")[2]], whole, at)
    if "anyOf" in form:
        found = [wrong(value, one, whole, at) for one in form["anyOf"]]
        return [] if [] in found else min(found, key=len)
    allowed = form.get("enum", [form["const"]] if "const" in form else None)
    if allowed is not None:
        return [] if value in allowed else [f"{at}: {value!r} is none of {allowed}"]
    if "type" in form:
        names = [form["type"]] if isinstance(form["type"], str) else form["type"]
        fits = [
            name for name in names if isinstance(value, _TYPES[name]) and (name == "boolean") == (type(value) is bool)
        ]
        if not fits:
            return [f"{at}: {value!r} is no {names}"]
    found_wrong: list[str] = []
    if isinstance(value, dict) and "properties" in form:
        found_wrong += [f"{at}.{name} is missing" for name in form["required"] if name not in value]
        found_wrong += [f"{at}.{name} is not in the schema" for name in value if name not in form["properties"]]
        for name, one in form["properties"].items():
            found_wrong += wrong(value[name], one, whole, f"{at}.{name}") if name in value else []
    elif isinstance(value, dict) and "additionalProperties" in form:
        for name, each in value.items():
            found_wrong += wrong(each, form["additionalProperties"], whole, f"{at}.{name}")
    for index, each in enumerate(value if isinstance(value, list) and "items" in form else ()):
        found_wrong += wrong(each, form["items"], whole, f"{at}[{index}]")
    return found_wrong
