"""Records of a change stream are decoded exactly, and a damaged record does not affect its neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.cloud.spanner_v1.types import result_set
from google.protobuf import struct_pb2
from google.protobuf.json_format import ParseDict

from penstock.errors import DecodeError
from penstock.io.spanner import decode
from penstock.io.spanner.decode import Decoder, merge_chunk
from penstock.io.spanner.record import (
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mods,
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


DATA = [
    "2026-01-01T00:00:00Z", "00000000", "t", True, "T", [["K", '{"code":"INT64"}', True, "1"]],
    [['{"K":"1"}', "{}", ""], ['{"K":"2"}', '{"V":"ü"}', "{}"]], "INSERT", "NEW_ROW", "2", "1", "tag", False,
]  # fmt: skip
DECODED = DataChangeRecord(
    1767225600_000000000, "00000000", "t", True, "T", (ColumnType("K", '{"code":"INT64"}', True, 1),),
    Mods(('{"K":"1"}', "{}", "", '{"K":"2"}', '{"V":"ü"}', "{}")), "INSERT", "NEW_ROW", 2, 1, "tag", False,
)  # fmt: skip


def data_with(**changes: Any) -> list[Any]:
    """Return a row with one data change record, whose fields at some places are changed: `at_11=None`."""
    fields = [changes.get(f"at_{place}", field) for place, field in enumerate(DATA)]
    return [[[fields + changes.get("further", [])], [], []]]


def test_a_data_change_record_is_decoded() -> None:
    assert Decoder().feed(message(data_with(), data_with())) == [DECODED, DECODED]


def test_data_records_stay_on_their_side_of_a_heartbeat() -> None:
    beat = HeartbeatRecord(1767225600_000000000)
    first, second = replace(DECODED, transaction_tag="a"), replace(DECODED, transaction_tag="b")
    rows = [
        data_with(at_11="a"),
        data_with(at_11="b"),
        BEAT,
        data_with(at_11="b"),
        BEAT,
        data_with(at_11="a"),
    ]
    assert Decoder().feed(message(*rows)) == [first, second, beat, second, beat, first]


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 0, 1), (1, 3, 0, 0, 2), (0, 0)])
def test_each_record_of_a_message_has_its_own_mods(counts: tuple[int, ...]) -> None:
    mods = [[[f'{{"K":"{at}.{n}"}}', "{}", ""] for n in range(count)] for at, count in enumerate(counts)]
    records = Decoder().feed(message(*[data_with(at_6=some) for some in mods]))
    assert records == [
        replace(DECODED, mods=Mods(tuple([side for mod in some for side in mod]))) for some in mods
    ]


def test_a_null_side_changes_only_its_own_record() -> None:
    null = [['{"K":"1"}', None, "{}"]]
    records = Decoder().feed(message(data_with(), data_with(at_6=null), data_with()))
    assert records == [DECODED, replace(DECODED, mods=Mods(('{"K":"1"}', "", "{}"))), DECODED]


def test_a_null_is_empty_and_the_fields_after_it_stay_in_their_places() -> None:
    assert Decoder().feed(message(data_with(at_11=None))) == [replace(DECODED, transaction_tag="")]
    assert Decoder().feed(message(data_with(at_3=None))) == [
        replace(DECODED, is_last_record_in_transaction_in_partition=False)
    ]
    sides = [['{"K":"1"}', None, ""], ['{"K":"2"}', '{"V":"ü"}', "{}"]]
    (record,) = Decoder().feed(message(data_with(at_6=sides)))
    assert record == replace(DECODED, mods=Mods(('{"K":"1"}', "", "", '{"K":"2"}', '{"V":"ü"}', "{}")))


@pytest.mark.parametrize("further", [["text"], [True], [["list"]], [None], [5]])
def test_further_fields_at_the_end_of_a_record_are_ignored(further: list[Any]) -> None:
    assert Decoder().feed(message(data_with(further=further))) == [DECODED]
    assert Decoder().feed(message(data_with(at_11=None, further=further))) == [
        replace(DECODED, transaction_tag="")
    ]


def test_a_further_side_of_a_mod_is_ignored_where_the_row_type_names_it() -> None:
    def fields(*names: str) -> list[Any]:
        return [{"name": name, "type": {"code": "STRING"}} for name in names]

    def structs(name: str, of: list[Any]) -> Any:
        struct = {"code": "STRUCT", "structType": {"fields": of}}
        return {"name": name, "type": {"code": "ARRAY", "arrayElementType": struct}}

    mods = structs("mods", fields("keys", "new_values", "old_values", "more"))
    data = [mods if name == "mods" else fields(name)[0] for name in decode._DATA_FIELDS]
    kinds = [structs("data_change_record", data), *fields("heartbeat_record", "child_partitions_record")]
    row_type = {"fields": [structs("ChangeRecord", kinds)]}
    sides = [[*mod, "more"] for mod in DATA[6]]
    answer = {"metadata": {"rowType": row_type}, "values": [data_with(at_6=sides)]}
    encoded = ParseDict(answer, PartialResultSet()).SerializeToString()
    assert Decoder().feed(encoded) == [DECODED]


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
    with pytest.raises(DecodeError, match=r"neither data, heartbeat nor child partitions"):
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


def row_of(*fields: Any) -> list[Any]:
    """Return a row with one data change record of these fields."""
    return [[[list(fields)], [], []]]


PLACE = ("2026-01-01T00:00:00Z", "00000003", "tx")
TAIL = ("INSERT", "NEW_VALUES", "1", "1", "", False)


@pytest.mark.parametrize(
    "fields",
    [
        (*PLACE, True, "T", [], [["{}", "{}"]], *TAIL),  # a mod of two sides
        (*PLACE, True, "T", [], [], "INSERT", "NEW_VALUES", "a secret", "1", "", False),
        (*PLACE, True, "T", [["K", "{}", True]], [], *TAIL),  # a column without a position
        (*PLACE, True),
    ],
)
def test_a_damaged_record_keeps_its_place_and_its_bytes_and_its_neighbours_are_decoded(
    fields: tuple[Any, ...],
) -> None:
    whole = row_of(*PLACE, True, "T", [], [["{}", "{}", "{}"]], *TAIL)
    first, damaged, last = Decoder().feed(message(whole, row_of(*fields), whole))
    assert first == last == Decoder().feed(message(whole))[0]
    assert isinstance(damaged, DamagedRecord)
    assert (damaged.commit_timestamp, damaged.server_transaction_id, damaged.record_sequence) == (
        1767225600_000000000,
        "tx",
        "00000003",
    )
    assert struct_pb2.Value.FromString(damaged.data) == value(list(fields))
    assert "secret" not in damaged.reason


@pytest.mark.parametrize("fields", [("yesterday", "00000003", "tx"), ("2026-01-01T00:00:00Z", "x", "tx"), ()])
def test_a_damaged_record_without_a_readable_place_is_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(DecodeError, match="without a readable timestamp") as error:
        Decoder().feed(message(row_of(*fields)))
    assert "yesterday" not in str(error.value)
