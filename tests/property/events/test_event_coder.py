"""A decoded event equals the one that was encoded, for every kind of value."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event.coder import ChangeEventCoder, decode_event, encode_event
from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.event.model import ChangeEvent, Column, Message, Op, Source, TableSchema, Transaction, Version
from tests.property.events.strategies import VALUES, integers, texts, types, values

# More than the sources have: infinite dates, years beyond 9999, any decimal.
EVERY_VALUE = VALUES | {
    Kind.DECIMAL: st.decimals(allow_nan=False),
    Kind.DATE: st.integers(-(10**7), 10**7) | st.sampled_from([float("inf"), float("-inf")]),
    Kind.TIMESTAMP: integers,
    Kind.INTERVAL: st.builds(Interval, integers, st.integers(-5, 5), integers),
}


@st.composite
def events(draw: st.DrawFn) -> ChangeEvent:
    named = draw(st.dictionaries(texts, types, max_size=5))
    schema = TableSchema(
        tuple(Column(name, type_, None, place + 1) for place, (name, type_) in enumerate(named.items()))
    )
    sent = st.fixed_dictionaries(
        {}, optional={name: values(type_, EVERY_VALUE) for name, type_ in named.items()}
    )
    images = st.none() | sent
    return ChangeEvent(
        draw(st.builds(Source, texts, table=texts)),
        draw(st.sampled_from(Op)),
        draw(integers),
        draw(images),
        draw(images),
        draw(images),
        draw(st.builds(Version, st.integers(0, 2**63), texts, texts, st.integers(0, 9))),
        schema,
        draw(st.none() | st.builds(Transaction, texts, st.none() | st.integers(0, 9))),
        draw(st.none() | st.builds(Message, texts, st.binary())),
    )


@given(events())
def test_an_event_survives_its_coder(event: ChangeEvent) -> None:
    decoded = decode_event(encode_event(event))
    assert decoded == event
    for ours, theirs in (
        (decoded.after, event.after),
        (decoded.before, event.before),
        (decoded.key, event.key),
    ):
        assert list(ours or ()) == list(theirs or ())  # the order of columns
        assert [type(value) for value in (ours or {}).values()] == [
            type(value) for value in (theirs or {}).values()
        ]
    assert encode_event(decoded) == encode_event(event)


def test_nan_and_the_scale_of_a_decimal_survive() -> None:
    schema = TableSchema((Column("d", ColumnType(Kind.DECIMAL)), Column("f", ColumnType(Kind.FLOAT64))))
    image = {"d": Decimal("1.500"), "f": float("nan")}
    event = ChangeEvent(Source("x"), Op.READ, 1, None, None, image, Version(1), schema)
    after = decode_event(encode_event(event)).after or {}
    assert str(after["d"]) == "1.500"
    assert after["f"] != after["f"]


def test_a_format_of_a_later_release_is_rejected_by_name() -> None:
    with pytest.raises(ValueError, match="format version 9 cannot be read by this release"):
        ChangeEventCoder().decode(b"\x09rest")
