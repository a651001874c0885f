"""Values as a table of Spanner has them after the sink has written them, in one form for equal values. Pure.

| type of the target | form |
|---|---|
| NUMERIC | no zeros at the end of the fraction |
| FLOAT32, FLOAT64 | 0.0 for -0.0 |
| JSON | the text with sorted members, the first of members with one name, and 1 for 1.0 |
| ARRAY | of such values |
| all others | the value |

Source: Cloud Spanner documentation, "Data types in GoogleSQL" (JSON type, NUMERIC type, floating point types).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Any

from penstock.event.column_types import ColumnType, Kind
from penstock.event.keys import without_trailing_zeros
from penstock.io.spanner.sink.values import spanner_value
from penstock.io.spanner.values import python_value
from penstock.verify.keys import INTEGERS

_NUMBERS_OF_JSON = range(-(2**63), 2**64)
"""Integers that Spanner's JSON has exactly. Others are doubles."""
_exact = Context(prec=1_000)


def stored_value(source: ColumnType, target: ColumnType, value: Any) -> Any:
    """Return the value that a read of the target gives after the sink has written a value of the source.

    Raises:
        ValueError, TypeError, ArithmeticError: the target has no such value.
    """
    if value is None:
        return None
    read, form = python_value(target, spanner_value(source, value)), form_of(target)
    return read if form is None else form(read)


@lru_cache(maxsize=4096)
def form_of(type_: ColumnType) -> Callable[[Any], Any] | None:
    """Return what brings a value of the target that is not None to its form; None: values have one form."""
    match type_.kind:
        case Kind.DECIMAL:
            return without_trailing_zeros
        case Kind.FLOAT32 | Kind.FLOAT64:
            return lambda value: value + 0.0
        case Kind.JSON:
            return _json
        case Kind.ARRAY if type_.element is not None:
            element = form_of(type_.element)
            if element is not None:
                return lambda values: [None if each is None else element(each) for each in values]
    return None


def _json(text: str) -> str:
    value = json.loads(text, object_pairs_hook=_first_members, parse_int=_integer, parse_float=_double)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _first_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _integer(text: str) -> Any:
    number = int(text)
    return number if number in _NUMBERS_OF_JSON else _double(text)


def _double(text: str) -> Any:
    number = float(text)
    is_whole = isfinite(number) and number.is_integer() and int(number) in _NUMBERS_OF_JSON
    return int(number) if is_whole else number


def key_value(source: ColumnType, target: ColumnType, value: Any) -> Any:
    """Return the value that the source's events have for a key column, from a value that was read from the target.

    Raises:
        ValueError, TypeError, ArithmeticError: the source has no such value.
    """
    if value is None or source.kind is target.kind is not Kind.DECIMAL:
        return value
    written = spanner_value(target, value)
    if source.kind in INTEGERS or source.kind in (Kind.TIME, Kind.LOCAL_TIMESTAMP):
        return int(written)
    found = python_value(source, written)
    # PostgreSQL writes all digits of a declared scale. Spanner writes none of the zeros at the end.
    if source.kind is Kind.DECIMAL and source.scale is not None and source.native != target.native:
        return found.quantize(Decimal(1).scaleb(-source.scale), context=_exact)
    return found
