"""Values of a replica in Spanner: what a read gives after a write, and the key that the source has for it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event import ColumnType, Kind
from penstock.event.keys import canonical_rule
from penstock.io.spanner.sink.values import spanner_value
from penstock.io.spanner.values import python_value
from penstock.verify.spanner_values import form_of, key_value, stored_value

NUMERIC = ColumnType(Kind.DECIMAL, "NUMERIC", 38, 9)
STRING, INT64, FLOAT64 = (ColumnType(kind, kind) for kind in (Kind.STRING, Kind.INT64, Kind.FLOAT64))
JSON, BYTES, DATE, TIMESTAMP = (
    ColumnType(kind, kind) for kind in (Kind.JSON, Kind.BYTES, Kind.DATE, Kind.TIMESTAMP)
)
BOOL, FLOAT32 = ColumnType(Kind.BOOL, "BOOL"), ColumnType(Kind.FLOAT32, "FLOAT32")


def of_postgres(kind: Kind, scale: int | None = None) -> ColumnType:
    return ColumnType(kind, "of PostgreSQL", None if scale is None else 30, scale)


@pytest.mark.parametrize(
    ("source", "target", "value", "stored"),
    [
        (of_postgres(Kind.DECIMAL, 2), NUMERIC, Decimal("10.50"), Decimal("10.5")),
        (of_postgres(Kind.DECIMAL, 2), STRING, Decimal("10.50"), "10.50"),
        (of_postgres(Kind.INT32), INT64, 7, 7),
        (of_postgres(Kind.INT32), STRING, 7, "7"),
        (of_postgres(Kind.FLOAT64), FLOAT64, -0.0, 0.0),
        (of_postgres(Kind.FLOAT64), FLOAT32, 0.1, 0.1),
        (of_postgres(Kind.JSON), JSON, '{"b": 1.0, "a": [1e2, 1.50]}', '{"a":[100,1.5],"b":1}'),
        (of_postgres(Kind.JSON), JSON, '{"a": 1, "a": 2}', '{"a":1}'),
        (of_postgres(Kind.JSON), JSON, '"ü"', '"ü"'),
        (of_postgres(Kind.BYTES), BYTES, b"\x00", b"\x00"),
        (of_postgres(Kind.DATE), DATE, 1, 1),
        (of_postgres(Kind.TIMESTAMP), TIMESTAMP, 1_000, 1_000),
        (of_postgres(Kind.BOOL), BOOL, True, True),
        (of_postgres(Kind.STRING), STRING, None, None),
        (
            ColumnType(Kind.ARRAY, element=of_postgres(Kind.DECIMAL)),
            ColumnType(Kind.ARRAY, element=NUMERIC),
            [Decimal("1.0"), None],
            [Decimal(1), None],
        ),
    ],
    ids=lambda each: str(each.kind) if isinstance(each, ColumnType) else None,
)
def test_a_value_is_as_a_read_of_the_target_gives_it(
    source: ColumnType, target: ColumnType, value: Any, stored: Any
) -> None:
    assert repr(stored_value(source, target, value)) == repr(stored)


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [(of_postgres(Kind.STRING), INT64, "seven"), (of_postgres(Kind.TIMESTAMP), INT64, 0)],
)
def test_a_value_that_the_target_cannot_have_is_an_error(
    source: ColumnType, target: ColumnType, value: Any
) -> None:
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        stored_value(source, target, value)


_NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_DOCUMENTS)
def test_the_form_of_json_keeps_its_value_and_has_one_text(document: Any) -> None:
    form = form_of(JSON)
    assert form is not None
    text = form(json.dumps(document))
    assert json.loads(text) == json.loads(json.dumps(document), parse_int=_as_spanner_has_it)
    assert form(text) == text
    assert form(json.dumps(json.loads(text), indent=1)) == text


def _as_spanner_has_it(text: str) -> int | float:
    return int(text) if -(2**63) <= int(text) < 2**64 else float(text)


_DECIMALS = st.decimals(-(10**20), 10**20, places=4)
_KEYS: list[tuple[ColumnType, ColumnType, Any]] = [
    (of_postgres(Kind.INT32), INT64, st.integers(-(2**31), 2**31 - 1)),
    (of_postgres(Kind.INT64), STRING, st.integers(-(2**63), 2**63 - 1)),
    (of_postgres(Kind.DECIMAL, 4), NUMERIC, _DECIMALS),
    (of_postgres(Kind.DECIMAL), NUMERIC, _DECIMALS),
    (of_postgres(Kind.DECIMAL, 4), STRING, _DECIMALS),
    (NUMERIC, NUMERIC, _DECIMALS.map(lambda value: form_of(NUMERIC)(value))),  # type: ignore[misc]
    (of_postgres(Kind.UUID), STRING, st.uuids().map(str)),
    (of_postgres(Kind.UUID), ColumnType(Kind.UUID, "UUID"), st.uuids().map(str)),
    (of_postgres(Kind.ENUM), STRING, st.text()),
    (of_postgres(Kind.BYTES), BYTES, st.binary()),
    (of_postgres(Kind.BYTES), STRING, st.binary()),
    (of_postgres(Kind.DATE), DATE, st.integers(-700_000, 2_900_000)),
    (of_postgres(Kind.TIMESTAMP), TIMESTAMP, st.integers(-(10**18), 10**19)),
    (of_postgres(Kind.TIMESTAMP), STRING, st.integers(-(10**18), 10**19)),
    (of_postgres(Kind.TIME), INT64, st.integers(0, 86_400 * 10**9)),
    (of_postgres(Kind.LOCAL_TIMESTAMP), INT64, st.integers(0, 10**18)),
    (of_postgres(Kind.BOOL), BOOL, st.booleans()),
]


@pytest.mark.parametrize(("source", "target", "values"), _KEYS)
@given(st.data())
def test_a_key_of_the_target_is_the_key_of_the_source(
    source: ColumnType, target: ColumnType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rule = canonical_rule(source) or (lambda value: value)
    key = rule(data.draw(values))
    read = python_value(target, spanner_value(source, key))
    form = form_of(target)
    found = key_value(source, target, read if form is None else form(read))
    assert repr(rule(found)) == repr(key)


@pytest.mark.parametrize(
    ("source", "value"), [(of_postgres(Kind.INT32), "seven"), (of_postgres(Kind.DATE), "today")]
)
def test_a_key_that_the_source_cannot_have_is_an_error(source: ColumnType, value: str) -> None:
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        key_value(source, STRING, value)
