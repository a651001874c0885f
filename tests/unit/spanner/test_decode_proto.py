"""Records of MUTABLE_KEY_RANGE streams, which arrive as protobuf messages, are decoded as the others are."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.cloud.spanner_v1.types import ChangeStreamRecord, Type, TypeAnnotationCode, TypeCode
from google.protobuf.struct_pb2 import ListValue, Value

from penstock.errors import DecodeError
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.decode_proto import (
    CAPTURE_TYPES,
    MOD_TYPES,
    TYPE_ANNOTATIONS,
    TYPE_CODES,
    decode_proto,
)
from penstock.io.spanner.record import (
    DamagedRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from tests.unit.spanner.test_decode_json import BYTES, message

Message = ChangeStreamRecord.pb()
PROTO = 13


def encoded(record: Any) -> str:
    return base64.b64encode(record.SerializeToString()).decode()


def data_record() -> Any:
    record = Message()
    data = record.data_change_record
    data.commit_timestamp.seconds, data.commit_timestamp.nanos = 1767225600, 105150001
    data.record_sequence, data.server_transaction_id, data.table = "00000003", "tx", "T"
    for name, code in (("Id", TypeCode.INT64), ('a "b"', TypeCode.FLOAT64), ("Tags", TypeCode.ARRAY)):
        column = data.column_metadata.add(name=name, ordinal_position=len(data.column_metadata) + 1)
        column.is_primary_key = name == "Id"
        column.type_.code = code
    data.column_metadata[2].type_.array_element_type.code = TypeCode.STRING
    mod = data.mods.add()
    value(mod.keys, 0, Value(string_value="9007199254740993"))
    value(mod.new_values, 1, Value(number_value=0.5))
    value(
        mod.new_values, 2, Value(list_value=ListValue(values=[Value(string_value="x"), Value(null_value=0)]))
    )
    data.mod_type, data.value_capture_type = 20, 10
    data.number_of_records_in_transaction, data.number_of_partitions_in_transaction = 2, 1
    data.is_last_record_in_transaction_in_partition = True
    return record


def value(side: Any, column: int, content: Any) -> None:
    side.add(column_metadata_index=column).value.CopyFrom(content)


def test_a_data_change_record_has_the_same_form_as_in_the_other_mode() -> None:
    record = decode_proto(encoded(data_record()))
    assert isinstance(record, DataChangeRecord)
    assert record.commit_timestamp == 1767225600_105150001
    assert [
        (column.name, json.loads(column.type)["code"], column.is_primary_key)
        for column in record.column_types
    ] == [
        ("Id", "INT64", True),
        ('a "b"', "FLOAT64", False),
        ("Tags", "ARRAY", False),
    ]
    assert record.column_types[2].type == '{"array_element_type":{"code":"STRING"},"code":"ARRAY"}'
    assert list(record.mods) == [
        Mod('{"Id":"9007199254740993"}', '{"a \\"b\\"":0.5,"Tags":["x",null]}', "{}")
    ]
    assert (record.mod_type, record.value_capture_type) == ("UPDATE", "OLD_AND_NEW_VALUES")
    assert (record.number_of_records_in_transaction, record.is_system_transaction) == (2, False)


@pytest.mark.parametrize(
    ("number", "text"),
    [(float("nan"), '"NaN"'), (float("inf"), '"Infinity"'), (float("-inf"), '"-Infinity"'), (1e300, "1e300")],
)
def test_numbers_that_json_does_not_have_become_text(number: float, text: str) -> None:
    record = data_record()
    record.data_change_record.mods[0].new_values[0].value.number_value = number
    decoded = decode_proto(encoded(record))
    assert isinstance(decoded, DataChangeRecord)
    assert json.loads(decoded.mods[0].new_values)['a "b"'] == json.loads(text)


def test_records_about_partitions_are_decoded() -> None:
    record = Message()
    record.partition_start_record.start_timestamp.seconds = 7
    record.partition_start_record.record_sequence = "00000001"
    record.partition_start_record.partition_tokens.extend(["a", "b"])
    assert decode_proto(encoded(record)) == PartitionStartRecord(7_000000000, "00000001", ("a", "b"))
    record = Message()
    record.partition_end_record.end_timestamp.seconds = 7
    assert decode_proto(encoded(record)) == PartitionEndRecord(7_000000000, "")
    record = Message()
    event = record.partition_event_record
    event.commit_timestamp.seconds, event.partition_token = 7, "a"
    event.move_in_events.add().source_partition_token = "s"
    event.move_out_events.add().destination_partition_token = "d"
    assert decode_proto(encoded(record)) == PartitionEventRecord(
        7_000000000, "", frozenset("s"), frozenset("d")
    )
    record = Message()
    record.heartbeat_record.timestamp.nanos = 1
    assert decode_proto(encoded(record)) == HeartbeatRecord(1)


def test_an_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(DecodeError, match="neither data, heartbeat, partition start"):
        decode_proto("")
    with pytest.raises(DecodeError, match="neither data, heartbeat, partition start"):
        decode_proto(base64.b64encode(b"\x32\x00").decode())  # an empty message as field 6


@pytest.mark.parametrize("text", ["A", "AAA", base64.b64encode(b"\xff\xff").decode()])
def test_a_row_that_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="not a ChangeStreamRecord in base64"):
        decode_proto(text)


@pytest.mark.parametrize("damage", ["column", "mod_type", "capture"])
def test_a_damaged_record_keeps_its_place_and_its_bytes(damage: str) -> None:
    record = data_record()
    data = record.data_change_record
    if damage == "column":
        data.mods[0].keys[0].column_metadata_index = 7
    elif damage == "mod_type":
        data.mod_type = 99
    else:
        data.value_capture_type = 0
    decoded = decode_proto(encoded(record))
    assert isinstance(decoded, DamagedRecord)
    assert (decoded.commit_timestamp, decoded.server_transaction_id, decoded.record_sequence) == (
        1767225600_105150001,
        "tx",
        "00000003",
    )
    assert Message.FromString(b"\x0a" + varint(len(decoded.data)) + decoded.data) == record
    assert "9007199254740993" not in decoded.reason


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)


@pytest.mark.parametrize("code", [PROTO, BYTES])
def test_the_row_type_of_either_dialect_selects_this_form(code: int) -> None:
    text, decoder = encoded(data_record()), Decoder()
    assert decoder.feed(message(text[:50], code=code, chunked=True)) == []
    assert decoder.feed(message(text[50:], metadata=False)) == [decode_proto(text)]
    decoder.finish()


def test_the_names_of_enumerations_are_those_of_the_client_library() -> None:
    data = ChangeStreamRecord.DataChangeRecord
    assert TYPE_CODES.items() <= {code.value: code.name for code in TypeCode}.items()
    assert {c.value for c in TypeCode} - TYPE_CODES.keys() == {0}
    assert {c.value: c.name for c in TypeAnnotationCode if c.value} == TYPE_ANNOTATIONS
    assert {c.value: c.name for c in data.ModType if c.value} == MOD_TYPES
    assert {c.value: c.name for c in data.ValueCaptureType if c.value} == CAPTURE_TYPES
    assert Type(proto_type_fqn="x")._pb.DESCRIPTOR.fields_by_name["proto_type_fqn"].number == 5
