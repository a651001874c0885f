"""The canonical form of keys, and changes of a key. Pure.

A database finds a row by comparing values, a consumer by comparing bytes. Where one value has several forms
(``2.5`` and ``2.50``, ``0`` and ``-0``), `ChangeEvent.key` has the form of this module, so every format, shard and
target has one key for one row. Images keep the values as the source sent them.

| kind | canonical form |
|---|---|
| DECIMAL without a declared scale | no zeros at the end of the fraction |
| FLOAT32, FLOAT64 | 0.0 for -0.0 |
| ARRAY, STRUCT | of canonical values |
| all others | the value |

Timestamps need no rule: they are numbers. For some types only the database knows which texts are equal: text with a
nondeterministic collation, citext, jsonb, interval. Two forms of one value are two keys then, and an UPDATE from one to
the other is a change of the key: the row moves, and no row of the old key remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from penstock.event.column_types import ColumnType, Kind
from penstock.event.model import ChangeEvent, Image, Op, TableSchema

RowKey = tuple[Any, ...]
"""A primary key as a hashable value; see `row_key`."""

Rule = Callable[[Any], Any]


def canonical_key(schema: TableSchema, key: Image) -> Image:
    """Return a key with each value in its canonical form."""
    rules = key_rules(schema)
    if not rules:
        return key
    canonical = dict(key)
    for name, rule in rules:
        value = key.get(name)
        if value is not None:
            canonical[name] = rule(value)
    return canonical


@lru_cache(maxsize=4096)
def key_rules(schema: TableSchema) -> tuple[tuple[str, Rule], ...]:
    """Return the key columns whose values may need another form, each with the function to it."""
    rules = ((column.name, canonical_rule(column.type)) for column in schema.key_columns)
    return tuple((name, rule) for name, rule in rules if rule is not None)


def canonical_rule(type_: ColumnType) -> Rule | None:
    """Return the function from a value that is not None to its canonical form; None: values have one form."""
    match type_.kind:
        # A declared scale gives all values the same number of digits.
        case Kind.DECIMAL if type_.scale is None:
            return without_trailing_zeros
        case Kind.FLOAT32 | Kind.FLOAT64:
            return _without_negative_zero
        case Kind.ARRAY if type_.element is not None:
            element = canonical_rule(type_.element)
            return None if element is None else lambda values: _elements(values, element)
        case Kind.STRUCT:
            rules = {each.name: rule for each in type_.fields if (rule := canonical_rule(each.type))}
            return (lambda value: _fields(value, rules)) if rules else None
    return None


def without_trailing_zeros(number: Decimal) -> Decimal:
    """Return an equal number without zeros at the end of its fraction, and without an exponent: 100 stays 100."""
    if not number.is_finite():
        return number
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return Decimal(text) if number else Decimal(0)


def _without_negative_zero(number: float) -> float:
    return number + 0.0


def _elements(values: list[Any], rule: Rule) -> list[Any]:
    # PostgreSQL's arrays of several dimensions are nested lists of one element type.
    return [
        None if each is None else _elements(each, rule) if isinstance(each, list) else rule(each)
        for each in values
    ]


def _fields(value: dict[str, Any], rules: dict[str, Rule]) -> dict[str, Any]:
    return {
        name: rules[name](each) if each is not None and name in rules else each
        for name, each in value.items()
    }


def changed_key(event: ChangeEvent) -> Image | None:
    """Return the key that the row had before an UPDATE, or None if it is the same, or was not sent.

    A key column that the image before the change lacks did not change.
    """
    key, before = event.key, event.before
    if event.op is not Op.UPDATE or before is None or key is None:
        return None
    if all(before.get(name, value) == value for name, value in key.items()):
        return None
    old = canonical_key(event.schema, {name: before.get(name, value) for name, value in key.items()})
    return None if row_key(old) == row_key(key) else old


def row_key(key: Image) -> RowKey:
    """Return the values of a key as a tuple that can be hashed; NaN is equal to itself."""
    return tuple(value if type(value) in (int, str, bytes) else _hashable(value) for value in key.values())


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in value.items())
    # Databases treat NaN as one value of a key; in Python it is not equal to itself.
    if isinstance(value, float | Decimal) and math.isnan(value):
        return "NaN"
    return value
