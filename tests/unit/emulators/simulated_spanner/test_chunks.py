"""Cutting a value in pieces loses nothing, by the rules of result_set.proto and by the ordinary client."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.spanner_v1 import streamed
from google.cloud.spanner_v1.types import ResultSetMetadata
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.simulated_spanner import record_encoding, wire
from penstock_emulators.simulated_spanner.chunks import pieces
from penstock_emulators.simulated_spanner.column_type import GOOGLESQL
from penstock_emulators.simulated_spanner.record import Children, DataChange, Mod, RecordColumn
from penstock_emulators.simulated_spanner.schema import IMMUTABLE
from penstock_emulators.simulated_spanner.value import ColumnType

values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


def merged(first: Any, second: Any) -> Any:
    """The rule of result_set.proto, for values in Python's form."""
    if isinstance(first, str):
        return first + second
    if first and second and isinstance(first[-1], (str, list)) and type(first[-1]) is type(second[0]):
        return [*first[:-1], merged(first[-1], second[0]), *second[1:]]
    return first + second


@given(value=values, size=st.integers(1, 40))
def test_pieces_merge_to_the_value(value: Any, size: int) -> None:
    parts = [
        record_encoding.python_value(struct_pb2.Value.FromString(piece))
        for piece in pieces(record_encoding.value_bytes(value), size)
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = merged(whole, part)
    assert whole == value


@given(value=values)
def test_handwritten_values_are_those_of_protobuf(value: Any) -> None:
    message = struct_pb2.Value()
    record_encoding.fill_value(message, value)
    assert struct_pb2.Value.FromString(record_encoding.value_bytes(value)) == message


@given(number=st.integers(0, 1 << 60))
def test_varint_is_that_of_protobuf(number: int) -> None:
    duration = struct_pb2.Value(string_value="")
    assert duration is not None
    decoded, shift = 0, 0
    for byte in wire.varint(number):
        decoded |= (byte & 0x7F) << shift
        shift += 7
    assert decoded == number


@pytest.mark.slow
@given(size=st.integers(1, 300), texts=st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_ordinary_client_joins_a_chunked_change_record(size: int, texts: list[str]) -> None:
    columns = (
        RecordColumn("Id", ColumnType("INT64"), True, 1),
        RecordColumn("T", ColumnType("STRING"), False, 2),
    )
    mods = tuple(Mod({"Id": str(n)}, {"T": text}, {}) for n, text in enumerate(texts))
    records = [
        DataChange(7 * 10**18, 3, "tx", True, "Accounts", columns, mods, "INSERT", "NEW_VALUES", 1, 1, "tag"),
        Children(7 * 10**18, 0, (("a", ("b", "c")), ("d", ()))),
    ]
    for record in records:
        whole = record_encoding.struct_value(record)
        metadata = ResultSetMetadata.deserialize(record_encoding.row_metadata(GOOGLESQL, IMMUTABLE, "READ_S"))
        kind = metadata.row_type.fields[0].type_
        parts = [struct_pb2.Value.FromString(piece) for piece in pieces(whole, size)]
        value = parts[0]
        for part in parts[1:]:
            value = streamed._merge_by_type(value, part, kind)
        assert value == struct_pb2.Value.FromString(whole)
