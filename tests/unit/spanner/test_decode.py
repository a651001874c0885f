from __future__ import annotations

from typing import Any

import pytest
from google.cloud.spanner_v1.types import result_set
from google.protobuf import struct_pb2
from google.protobuf.json_format import ParseDict

from penstock.errors import DecodeError
from penstock.io.spanner.decode import Decoder, merge_chunk
from penstock.io.spanner.record import (
    ChildPartition,
    ChildPartitionsRecord,
    HeartbeatRecord,
)
from penstock.timestamps import format_timestamp, parse_timestamp

PartialResultSet = result_set.PartialResultSet.pb()
BEAT = [[[], [["2026-01-01T00:00:00Z"]], []]]


def message(*rows: Any, chunked: bool = False) -> bytes:
    answer = ParseDict({"values": list(rows), "chunkedValue": chunked}, PartialResultSet())
    return bytes(answer.SerializeToString())


def value(plain: Any) -> Any:
    return ParseDict(plain, struct_pb2.Value())


def test_heartbeats_and_children_are_decoded() -> None:
    child = [[[], [], [["2026-01-01T00:00:00.5Z", "00000001", [["m", ["a", "b"]], ["n", []]]]]]]
    assert Decoder().feed(message(BEAT, child)) == [
        HeartbeatRecord(1767225600_000000000),
        ChildPartitionsRecord(
            1767225600_500000000,
            "00000001",
            (ChildPartition("m", frozenset("ab")), ChildPartition("n", frozenset())),
        ),
    ]


def test_a_chunked_row_is_returned_when_it_is_complete() -> None:
    decoder = Decoder()
    assert decoder.feed(message([[[], [["2026-01-"]]]], chunked=True)) == []
    assert decoder.feed(message()) == [], "a message without values carries only a resume token"
    whole = decoder.feed(message([[[["01T00:00:00Z"]], []]], BEAT))
    assert whole == [HeartbeatRecord(1767225600_000000000)] * 2
    decoder.finish()


def test_strings_concatenate_and_lists_merge_at_the_boundary() -> None:
    first = value(["a", ["b", "c"]])
    merge_chunk(first, value([["d", "e"], "f"]))
    assert first == value(["a", ["b", "cd", "e"], "f"])


def test_numbers_bools_and_nulls_at_a_boundary_stay_whole() -> None:
    first = value([1, True])
    merge_chunk(first, value([False, None]))
    assert first == value([1, True, False, None])


@pytest.mark.parametrize(
    ("first", "second"), [("a", ["b"]), (["a"], "b"), (1, 2), (True, False), (["a"], [True])]
)
def test_chunked_values_of_kinds_that_are_never_chunked_are_refused(first: Any, second: Any) -> None:
    with pytest.raises(DecodeError, match="a chunk of kind"):
        merge_chunk(value(first), value(second))


def test_query_that_ends_in_mid_row_is_an_error() -> None:
    decoder = Decoder()
    decoder.feed(message([[[], [["2026"]]]], chunked=True))
    with pytest.raises(DecodeError, match="in the middle of a row"):
        decoder.finish()


def test_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"neither data, heartbeat nor child partitions.*MUTABLE_KEY_RANGE"):
        Decoder().feed(message([[[], [], [], [["partition_start"]]]]))


def test_columns_other_than_a_change_record_are_refused() -> None:
    answer = ParseDict(
        {"metadata": {"rowType": {"fields": [{"name": "x", "type": {"code": "INT64"}}]}}}, PartialResultSet()
    )
    with pytest.raises(DecodeError, match=r"have the fields \(none\) where data_change_record"):
        Decoder().feed(answer.SerializeToString())


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2026-01-31T12:00:00.1Z", 1769860800_100000000),
        ("9999-12-31T23:59:59.999999999Z", 253402300799_999999999),
        ("1960-01-01T00:00:00.5Z", -315619199_500000000),
    ],
)
def test_timestamps_keep_nanoseconds(text: str, nanoseconds: int) -> None:
    assert parse_timestamp(text) == nanoseconds
    assert parse_timestamp(format_timestamp(nanoseconds)) == nanoseconds


def test_years_are_formatted_with_four_digits() -> None:
    assert format_timestamp(parse_timestamp("0999-01-02T03:04:05Z")) == "0999-01-02T03:04:05.000000000Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Z",
        "2026-01-31Z",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00+01:00",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00ZZ",
        "2026-01-31T12:00:00Z12Z",
        "2026-01-31T12:00:00.-12Z",
        "2026-01-31T12:00:00.1_2Z",
        "2026-01-31T12:00:00.0123456789Z",
        "2026-13-31T12:00:00Z",
        "2026-W05-6T12:00:00Z",
    ],
)
def test_timestamps_in_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an RFC 3339 timestamp in UTC such as 2026-01-31T12:00:00"):
        parse_timestamp(text)
