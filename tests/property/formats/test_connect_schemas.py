"""Records with schemas fit the schema that they contain, for every type of PostgreSQL and Spanner in every mode.

A value that does not fit is refused with its column.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.float32 import shortest
from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.column_types import CatalogType
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction, Table
from penstock.io.spanner.values import RowDecoder
from penstock.transforms.formats.converter import JsonConverter
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.event_envelope import EventFormat
from penstock.transforms.parsers.debezium import DebeziumParser

ENUM, HSTORE = 20_001, 20_002
CATALOG = {
    ENUM: CatalogType(ENUM, "public", "mood", category="e", labels=("sad", "ok")),
    HSTORE: CatalogType(HSTORE, "public", "hstore"),
}
TIMESTAMPS = [
    "2024-05-01 10:20:30.5",
    "0001-01-01 00:00:00",
    "1677-01-01 00:00:00",
    "2263-01-01 00:00:00",
    "4713-01-02 00:00:00 BC",
    "294276-12-31 23:59:59.999999",
]


def in_utc(text: str) -> str:
    moment, era, _ = text.partition(" BC")
    return f"{moment}+00{era}"


# Type, modifier, texts.
POSTGRES: dict[str, tuple[int, int, list[str]]] = {
    "boolean": (16, -1, ["t", "f"]),
    "bytea": (17, -1, ["\\x", "\\x00ff"]),
    "name": (19, -1, ["n"]),
    "bigint": (20, -1, ["9223372036854775807", "-9223372036854775808"]),
    "smallint": (21, -1, ["-32768"]),
    "integer": (23, -1, ["2147483647"]),
    "oid": (26, -1, ["4294967295"]),
    "xid8": (5069, -1, ["1", "18446744073709551615"]),
    "real": (700, -1, ["3.14", "NaN", "-Infinity", "1e-45", "-0"]),
    "double precision": (701, -1, ["3.14", "NaN", "Infinity"]),
    "numeric": (1700, -1, ["1.10", "0", "-12345678901234567890.5", "NaN"]),
    "numeric(8,3)": (1700, (8 << 16) + 3 + 4, ["1.100", "-99999.999"]),
    "text": (25, -1, ["", "x"]),
    "json": (114, -1, ["{}"]),
    "uuid": (2950, -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "date": (1082, -1, ["2024-05-01", "4713-01-01 BC", "5874897-12-31", "infinity", "-infinity"]),
    "time": (1083, -1, ["24:00:00", "10:20:30.123456"]),
    "time(0)": (1083, 0, ["24:00:00"]),
    "timetz": (1266, -1, ["10:00:00+02"]),
    "timestamp": (1114, -1, [*TIMESTAMPS, "infinity"]),
    "timestamp(3)": (1114, 3, ["294276-12-31 23:59:59.999", "-infinity"]),
    "timestamptz": (1184, -1, [*map(in_utc, TIMESTAMPS), "-infinity"]),
    "interval": (1186, -1, ["P1Y2M3DT4.5S", "P178000000Y", "P-178000000Y", "infinity"]),
    "bit(1)": (1560, 1, ["1"]),
    "bit(10)": (1560, 10, ["1000000001"]),
    "money": (790, -1, ["-$1,234.50"]),
    "point": (600, -1, ["(1,2.5)"]),
    "enum": (ENUM, -1, ["sad", "ok"]),
    "hstore": (HSTORE, -1, ['"a"=>"1", "b"=>NULL']),
    "int4range": (3904, -1, ["[1,2)"]),
    "integer[]": (1007, -1, ["{1,NULL}", "{{1,2},{3,4}}", "{}"]),
    "text[]": (1009, -1, ["{a}", "{{a},{b}}"]),
    "numeric[]": (1231, -1, ["{1.10}", "{{1.10},{2}}"]),
    "timestamp[]": (1115, -1, ['{"294276-12-31 23:59:59"}', '{{"2024-05-01 00:00:00"}}']),
    "bytea[]": (1001, -1, ['{"\\\\x00"}']),
    "real[]": (1021, -1, ["{3.14,NULL}"]),
}
INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LENIENT = frozenset({"NaN", "Infinity", "-Infinity"})
"""Kafka Connect writes these numbers as text."""


def misfit(schema: dict[str, Any], value: Any, path: str) -> str | None:
    """Return where a value in JSON does not fit a schema of Kafka Connect."""
    if value is None:
        return None if schema["optional"] else f"{path}: null"
    kind = schema["type"]
    match kind:
        case "struct":
            if type(value) is not dict:
                return f"{path}: no struct"
            fields = {field["field"]: field for field in schema["fields"]}
            found = [path + ": " + name for name in value.keys() - fields.keys()]
            found += [
                each
                for name, field in fields.items()
                if name in value or not field["optional"]
                if (each := misfit(field, value.get(name), f"{path}.{name}"))
            ]
            return found[0] if found else None
        case "array":
            if type(value) is not list:
                return f"{path}: no array"
            return next(filter(None, (misfit(schema["items"], each, f"{path}[]") for each in value)), None)
        case "map":
            return next(filter(None, (misfit(schema["values"], each, path) for each in value.values())), None)
        case "bytes":
            b64decode(value, validate=True)
            return None
    if kind in INTS:
        bound = 2 ** (INTS[kind] - 1)
        fits = type(value) is int and -bound <= value < bound
    else:
        expected = {"boolean": bool, "string": str, "float": float | int, "double": float | int}[kind]
        fits = (isinstance(value, expected) and (kind == "boolean" or type(value) is not bool)) or (
            kind in ("float", "double") and value in LENIENT
        )
    return None if fits else f"{path}: no {kind}"


MODES = {
    "decimal_handling_mode": ["precise", "double", "string"],
    "time_precision_mode": [
        *("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"),
    ],
    "binary_handling_mode": ["bytes", "base64", "base64-url-safe", "hex"],
    "interval_handling_mode": ["numeric", "string"],
    "hstore_handling_mode": ["json", "map"],
}
modes = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in MODES.items()})


def table_of(name: str, identity: str, nullable: bool) -> Table:
    oid, modifier, _ = POSTGRES[name]
    columns = (m.RelationColumn("id", 23, -1, True), m.RelationColumn("c", oid, modifier, identity == "f"))
    relation = m.Relation(1, "public", "t", identity, columns)
    return describe(relation, [("id", True, 1, None), ("c", not nullable, None, None)], CATALOG)


@st.composite
def log_records(draw: st.DrawFn, name: str, required: bool = False) -> LogRecord:
    nullable = not required or draw(st.booleans())
    table = table_of(name, draw(st.sampled_from("fd")), nullable)
    values = st.sampled_from([*POSTGRES[name][2], *([None] if nullable else [])])
    full = table.replica_identity == "FULL"
    kind = draw(st.sampled_from([ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.DELETE, ChangeKind.READ]))
    sent = (
        values | st.just(UNCHANGED) if kind is ChangeKind.UPDATE and not full and is_large(name) else values
    )
    new = None if kind is ChangeKind.DELETE else ("1", draw(sent))
    has_old = kind is ChangeKind.DELETE or (kind is ChangeKind.UPDATE and (full or draw(st.booleans())))
    old = (draw(st.sampled_from("12")), draw(values) if full else None) if has_old else None
    return LogRecord(kind, 5, LogTransaction(1, 1, 5), 1, 1, True, table, new, old, full and has_old)


def is_large(name: str) -> bool:
    return name.endswith("[]") or name in ("text", "bytea", "json", "numeric", "hstore")


def refusal(error: ValueError) -> None:
    """Check the error of a value that a format refuses: it names the column and the remedy."""
    text = str(error)
    assert "column c of srv.public.t cannot be shown" in text
    assert ": use " in text or ": leave" in text


@pytest.mark.parametrize("name", POSTGRES)
@given(data=st.data(), exact=st.booleans(), options=modes)
@settings(max_examples=40, deadline=None)
def test_a_record_of_postgresql_fits_its_schema_or_is_refused(
    name: str, data: st.DataObject, exact: bool, options: dict[str, Any]
) -> None:
    # The connector writes null for a required number that was not sent.
    (event,) = EventConverter()(data.draw(log_records(name, required=not exact)))
    format_ = DebeziumFormat("srv", schemas_enable=True, debezium_exact=exact, **options)
    try:
        records = format_(event)
    except ValueError as error:
        refusal(error)
        return
    parse = DebeziumParser(**options)
    for record in records:
        for part in (record.key, record.value):
            if part is not None:
                whole = json.loads(part)
                assert misfit(whole["schema"], whole["payload"], "") is None
        parse(record.key, record.value, record.headers)


@pytest.mark.parametrize("name", POSTGRES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_record_of_the_event_format_fits_its_schema_or_is_refused(name: str, data: st.DataObject) -> None:
    (event,) = EventConverter()(data.draw(log_records(name)))
    try:
        (record,) = EventFormat("srv", converter=JsonConverter(schemas_enable=True))(event)
    except ValueError as error:
        refusal(error)
        return
    whole = json.loads(record.value or b"")
    assert misfit(whole["schema"], whole["payload"], "") is None


TIMES = ("date", "time", "time(0)", "timestamp", "timestamp(3)", "timestamptz", "interval", "timestamp[]")
PARSED = (*TIMES, "numeric", "numeric(8,3)", "real", "bytea", "integer[]", "numeric[]", "bytea[]", "xid8")


@pytest.mark.parametrize("name", PARSED)
@given(data=st.data(), with_schemas=st.booleans(), options=modes)
@settings(max_examples=40, deadline=None)
def test_what_the_format_writes_the_parser_reads(
    name: str, data: st.DataObject, with_schemas: bool, options: dict[str, Any]
) -> None:
    (event,) = EventConverter()(data.draw(log_records(name)))
    format_ = DebeziumFormat("srv", schemas_enable=with_schemas, **options)
    # As texts, numbers and bytes have the schema of a text.
    has_types = with_schemas and options["decimal_handling_mode"] != "string"
    has_types = has_types and options["binary_handling_mode"] == "bytes"
    parse = DebeziumParser(None if has_types else event.schema, **options)
    try:
        records = format_(event)
    except ValueError:
        return
    for record in records:
        for parsed in parse(record.key, record.value, record.headers):
            # The digits that a mode leaves out are missing already.
            same = msgspec.structs.replace(
                event, op=parsed.op, key=parsed.key, before=parsed.before, after=parsed.after
            )
            assert format_(same)[0].value == record.value


FLOATS = TableSchema(
    (
        Column("f", ColumnType(Kind.FLOAT32, "FLOAT32")),
        Column("a", ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT32, "FLOAT32"))),
    )
)


@pytest.mark.parametrize("exact", [False, True])
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_of_32_bits_has_the_digits_that_it_needs(exact: bool, value: float) -> None:
    image = RowDecoder("T", FLOATS)(json.dumps({"f": value, "a": [value, None]}))
    source, version = Source("spanner", table="T"), Version(1, "t", "0")
    event = ChangeEvent(source, Op.CREATE, 1, None, None, image, version, FLOATS)
    (record,) = DebeziumFormat("srv", debezium_exact=exact)(event)
    after = json.loads(record.value or b"")["after"]
    assert after == {"f": shortest(value), "a": [shortest(value), None]}
    assert struct.pack("f", after["f"]) == struct.pack("f", value)
    (parsed,) = DebeziumParser(FLOATS, debezium_exact=exact)(record.key, record.value)
    assert parsed.after == image


def test_known_floats_of_32_bits_have_the_digits_of_debezium() -> None:
    assert shortest(3.140000104904175) == 3.14
    assert shortest(1.1754943508222875e-38) == 1.1754944e-38
    assert shortest(3.4028234663852886e38) == 3.4028235e38
