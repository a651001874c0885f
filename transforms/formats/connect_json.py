"""Payloads of Kafka Connect as the JSON that JsonConverter writes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.transforms.formats.debezium_types import Schema, json_float

Show = Callable[[Any], Any]


def json_values(schema: Schema) -> Show:
    """Return the function from a payload to what msgspec encodes: JSON has no NaN, and msgspec would write null.

    Bytes stay, because msgspec writes them as base64, as JsonConverter does.
    """
    return _rule(schema) or (lambda payload: payload)


def _rule(schema: Schema) -> Show | None:
    # Only floats can be NaN. Everything else is passed without a call.
    kind = schema["type"]
    if kind in ("float", "double"):
        return lambda value: None if value is None else json_float(value)
    if kind == "array":
        element = _rule(schema["items"])
        return element and (lambda values: None if values is None else [element(each) for each in values])
    if kind == "struct":
        # A struct without such a field anywhere needs no copy.
        rules = [(field["field"], rule) for field in schema["fields"] if (rule := _rule(field))]
        return (lambda struct: _changed(struct, rules)) if rules else None
    return None


def _changed(struct: dict[str, Any] | None, rules: list[tuple[str, Show]]) -> dict[str, Any] | None:
    if struct is None:
        return None
    return struct | {name: rule(struct[name]) for name, rule in rules if name in struct}
