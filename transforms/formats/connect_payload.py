"""Payloads of Kafka Connect, walked by their schema: other names for fields, and values that do not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.transforms.formats.debezium_types import Schema

Rename = Callable[[Any], Any]
NameOf = Callable[[str], str]


def renaming(schema: Schema, name_of: NameOf, *, back: bool = False) -> Rename | None:
    """Return the function that gives the fields of a payload the names of `name_of`; None if all names stay.

    `back`: from those names to the names of the schema.
    """
    if schema["type"] == "array":
        inner = renaming(schema["items"], name_of, back=back)
        return inner and (lambda values: values and [inner(each) for each in values])
    if schema["type"] != "struct":
        return None
    rules = {}
    for field in schema["fields"]:
        original, name = field["field"], name_of(field["field"])
        here, there = (name, original) if back else (original, name)
        rules[here] = (there, renaming(field, name_of, back=back))
    # A table whose names are all allowed costs nothing per record.
    if all(here == there and rule is None for here, (there, rule) in rules.items()):
        return None

    def rename(struct: Any) -> Any:
        if struct is None:
            return None
        return {
            there: rule(struct[here]) if rule else struct[here]
            for here, (there, rule) in rules.items()
            # A field that is not sent stays out; the encoder decides whether that is allowed.
            if here in struct
        }

    return rename


def refusal(schema: Schema, payload: Any, what: str, form: str) -> ValueError:
    """Return the error for a payload that an encoder refused. It names the field and shows no value.

    The messages of encoders show values of rows, so they are not used.
    """
    path, value = misfit(schema, payload) or ("a field", "")
    if value is None:
        return ValueError(f"{path} in {what} is NULL, but its {form} schema does not allow NULL")
    return ValueError(f"{path} in {what} has a value that its {form} type cannot hold")


def misfit(schema: Schema, value: Any) -> tuple[str, Any] | None:
    """Return the path and the value of the first field that does not fit its type, or None if all fit.

    Array elements have the path of their array. The path of `value` itself is empty.
    """
    # Reported apart: its remedy is to allow NULL, not to change the type.
    if value is None:
        return None if schema.get("optional") else ("", None)
    if schema["type"] == "struct":
        return _misfit_in_struct(schema, value)
    if schema["type"] == "array":
        misfits = (misfit(schema["items"], each) for each in value)
        return next(filter(None, misfits), None)
    return None if _FITS[schema["type"]](value) else ("", value)


def _misfit_in_struct(schema: Schema, struct: Any) -> tuple[str, Any] | None:
    if not isinstance(struct, dict):
        return "", struct
    for field in schema["fields"]:
        if found := misfit(field, struct.get(field["field"])):
            path, value = found
            return (f"{field['field']}.{path}" if path else field["field"]), value
    return None


def _integer(bits: int) -> Callable[[Any], bool]:
    # Two's complement has one more negative number.
    bound = 1 << (bits - 1)
    return lambda value: isinstance(value, int) and -bound <= value < bound


def _is_text(value: Any) -> bool:
    """Return whether a value is a text that UTF-8 can express: a lone surrogate cannot be encoded."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_FITS: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    # Avro and Protobuf have no integers below 32 bits.
    **dict.fromkeys(("int8", "int16", "int32"), _integer(32)),
    "int64": _integer(64),
    **dict.fromkeys(("float", "double"), lambda value: isinstance(value, int | float)),
    "string": _is_text,
    "bytes": lambda value: isinstance(value, bytes),
}
