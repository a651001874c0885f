"""Records of Debezium's PostgreSQL connector and ours, from one history: recorded by `record.py`.

Under `debezium_exact` they are equal field by field, except where the connector fails or shows today's catalogue.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from penstock.event import ChangeEvent, Op
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_transaction import format_transaction
from tests.golden.postgres.history import events, read

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "modes": {
        "decimal_handling_mode": "string",
        "time_precision_mode": "isostring",
        "binary_handling_mode": "hex",
        "interval_handling_mode": "string",
        "hstore_handling_mode": "map",
    },
    "transactions": {
        "decimal_handling_mode": "double",
        "time_precision_mode": "connect",
        "binary_handling_mode": "base64",
        "skipped_operations": "none",
    },
    "microseconds": {
        "time_precision_mode": "microseconds",
        "unavailable_value_placeholder": "not sent",
        "skipped_operations": "u,t",
    },
    "time_microseconds": {
        "time_precision_mode": "adaptive_time_microseconds",
        "decimal_handling_mode": "string",
        "binary_handling_mode": "hex",
    },
    "nanoseconds": {
        "time_precision_mode": "nanoseconds",
        "binary_handling_mode": "base64-url-safe",
        "tombstones_on_delete": False,
        "skipped_operations": "none",
    },
}

WITH_TRANSACTIONS = ("transactions", "time_microseconds")
"""Configurations with metadata of transactions."""

FAILING = {
    "ty_amo": "NULL in an array of an enum",
    "ty_ab1": "arrays of bits",
    "ty_ab3": "arrays of bits",
    "ty_nneg": "a negative scale is read as 2046",
    "ri_using": "the key is the primary key, with the invented id 0, and not the index of the identity",
    "toast_ad": "no placeholder in an array of numbers",
    "toast_ats": "no placeholder in an array of timestamps",
    "toast_an": "no placeholder in an array of decimals",
    "toast_n": "no placeholder for a large number",
    "toast_ada": "no placeholder in an array of dates as texts",
    "toast_aby": "no placeholder in an array of bytes as texts",
    "toast_by": "null for a required column in the modes base64",
    "ty_ts0": "no value for a required timestamp in nanoseconds",
    "ty_ts3": "the same",
    "ty_ts4": "the same",
    "ty_ts6": "the same, and years after 2262",
    "key_ts": "the same",
}
"""Tables of which the connector leaves out or damages records, in one configuration at least."""


def transactions() -> list[list[ChangeEvent]]:
    found: dict[Any, list[ChangeEvent]] = defaultdict(list)
    for event in events():
        found[event.version.transaction or event.version.order].append(event)
    return list(found.values())


def ours(name: str, **options: Any) -> dict[str, list[Any]]:
    format = DebeziumFormat(name, schemas_enable=True, **OPTIONS[name], **options)
    if name in WITH_TRANSACTIONS:
        records = []
        for whole in transactions():
            made = format_transaction(format, whole)
            # A message outside of transactions has no metadata.
            records += made if whole[0].transaction else format(whole[0])
    else:
        # Some of the values that damage records are refused.
        kept = [event for event in events() if event.source.table not in FAILING]
        records = [record for event in kept for record in format(event)]
    by_topic = defaultdict(list)
    for record in records:
        key, value = record.key and json.loads(record.key), record.value and json.loads(record.value)
        headers = [[header, json.loads(content)] for header, content in record.headers]
        by_topic[record.topic].append([key, value, headers])
    return by_topic


def theirs(name: str) -> dict[str, list[Any]]:
    golden = read(name)
    schemas = golden["schemas"]

    def whole(part: Any) -> Any:
        return part and {"schema": schemas[part[0]], "payload": part[1]}

    by_topic = defaultdict(list)
    for topic, key, value, headers in golden["records"]:
        by_topic[topic].append([whole(key), whole(value), [[each, whole(part)] for each, part in headers]])
    return by_topic


def comparable(topic: str, record: Any) -> Any:
    """Return a record without its times of processing, the version of the software and the order of members of maps."""
    key, value, headers = record
    if value is not None:
        payload = dict(value["payload"])
        if "source" in payload:
            payload["source"] = {**payload["source"], "version": ""}
            payload |= {unit: 0 for unit in ("ts_ms", "ts_us", "ts_ns") if unit in payload}
        for image in ("before", "after"):
            if payload.get(image):
                payload[image] = {name: _unordered(column) for name, column in payload[image].items()}
        if topic.endswith(".transaction"):
            payload = _transaction(payload)
        value = {**value, "payload": payload}
    if topic.endswith(".transaction"):
        key = {**key, "payload": {"id": key["payload"]["id"].partition(":")[0]}}
    return json.dumps([key, value, headers])


def _unordered(value: Any) -> Any:
    # hstore: the connector writes the pairs in the order of a hash table.
    if isinstance(value, str) and value.startswith('{"'):
        return json.dumps(json.loads(value), sort_keys=True)
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def _transaction(payload: Any) -> Any:
    # Debezium's counts stand in the order of a hash table, it counts messages under the name of a Java object, and the
    # position of END is that after the commit.
    collections = payload["data_collections"]
    named = sorted(
        [each["data_collection"], each["event_count"]]
        for each in collections or ()
        if each["data_collection"] and "LogicalDecodingMessage" not in each["data_collection"]
    )
    return {
        **payload,
        "id": payload["id"].partition(":")[0],
        "data_collections": collections and named,
    }


def tables(found: dict[str, list[Any]]) -> dict[str, list[str]]:
    # The connector does not count the records that it left out.
    failing = {event.version.transaction for event in events() if event.source.table in FAILING}

    def counted(topic: str, record: Any) -> bool:
        return (
            not topic.endswith(".transaction") or record[0]["payload"]["id"].partition(":")[0] not in failing
        )

    return {
        topic: [comparable(topic, record) for record in records if counted(topic, record)]
        for topic, records in found.items()
        if topic.rpartition(".")[2] not in FAILING
    }


# One more mode of times is enough in each run: the other one differs in one type.
ALL = [
    pytest.param(name, marks=[pytest.mark.slow, pytest.mark.campaign] if name == "time_microseconds" else [])
    for name in OPTIONS
]


@pytest.mark.parametrize("name", ALL)
def test_records_equal_those_of_debezium_field_by_field_in_every_mode(name: str) -> None:
    expected, found = tables(theirs(name)), tables(ours(name, debezium_exact=True))
    assert found.keys() == expected.keys()
    differing = {
        topic: (found[topic], expected[topic]) for topic in expected if found[topic] != expected[topic]
    }
    assert differing == {}
    assert sum(map(len, expected.values())) > 500


@pytest.mark.parametrize("name", WITH_TRANSACTIONS)
def test_the_count_of_an_event_is_that_of_its_records_with_a_value(name: str) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    for event in events():
        assert format.count(event) == sum(record.value is not None for record in format(event))


def test_without_exact_only_what_debezium_invents_or_loses_differs() -> None:
    format = DebeziumFormat("default", schemas_enable=True)
    expected = theirs("default")
    compared = 0
    for table in sorted({event.source.table for event in events()} - FAILING.keys() - INVENTED.keys() - {""}):
        found = [record for event in events() if event.source.table == table for record in format(event)]
        if not found:  # a truncate
            continue
        golden = expected[found[0].topic]
        for record, other in zip(found, golden, strict=True):
            key, value = record.key and json.loads(record.key), record.value and json.loads(record.value)
            headers = [[header, json.loads(content)] for header, content in record.headers]
            if value and columns(value) != columns(other[1]):
                # The connector leaves out columns of types that it does not know.
                assert columns(other[1]) < columns(value)
                continue
            ours_, theirs_ = (
                [each, relaxed(whole), rest] for each, whole, rest in ([key, value, headers], other)
            )
            assert comparable(record.topic, ours_) == comparable(record.topic, theirs_)
            compared += 1
    assert compared > 750


def relaxed(value: Any) -> Any:
    """Return a value without what its schema says of NULL in columns that may be unchanged large values."""
    for image in value["schema"]["fields"][:2] if value else ():
        for field in image["fields"]:
            if field["type"] == "array" or field.get("name") == "io.debezium.data.VariableScaleDecimal":
                field["optional"] = True
    return value


def columns(value: Any) -> set[str]:
    return {field["field"] for field in value["schema"]["fields"][0]["fields"]}


def test_without_schemas_columns_outside_of_the_identity_are_null_before_a_delete() -> None:
    format = DebeziumFormat("default")
    deletes = [event for event in events() if event.source.table == "ri_default" and event.op is Op.DELETE]
    (record, _) = format(deletes[0])
    before = json.loads(record.value or b"")["before"]
    assert before == {"id": 3, "code": None, "v": None, "w": None, "big": None, "bigb": None}


INVENTED = {
    "defs": "NULL is shown as the default of the column",
    "defs2": "the same",
    "ty_nm": "values of type name are lost",
    "ty_n": "NaN and infinities become NULL; here they are an error",
    "ty_n83": "the same",
    "ty_da": "infinite dates are some day of the year -5877611",
    "ty_a4d": "arrays of arrays become NULL",
    "toastf_an": "zeros at the end of numbers without a declared scale are cut off",
}
"""Tables whose records differ without `debezium_exact`, and why."""
