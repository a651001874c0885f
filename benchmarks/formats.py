"""Events per CPU second: the event model, and each format, against encoders of JSON on the same rows.

    python benchmarks/formats.py [--events 20000] [--rounds 5]

A row has 10 columns: five integers, two texts, a decimal, a timestamp and a bool. Contenders take turns in one
process; the median of the rounds counts. The measure is `time.process_time`.

- *json.dumps*, *msgspec*: encode the dictionaries of the rows to JSON. Dates and decimals are texts already.
- *model*: Spanner's `DataChangeRecord`s, of one mod each, to `ChangeEvent`s.
- *coder*: `encode_event`, then `decode_event`.
- the formats: from `ChangeEvent` to the bytes of key and value; with *record to*, from Spanner's record.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from measure import Spread, heading, machine, row

from penstock.event import ChangeEvent
from penstock.event.arrow import arrow_batches
from penstock.event.coder import decode_event, encode_event
from penstock.io.spanner.events import EventConverter
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mod, Mods
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.cloudevents import CloudEventsFormat
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.dynamodb import DynamoDbFormat
from penstock.transforms.formats.google_templates import SpannerBigQueryFormat
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.schema_registry import SchemaRegistry
from penstock.transforms.formats.ydb import YdbFormat
from penstock.transforms.formats.ydb_parse import YdbParser
from penstock.transforms.parsers.debezium import DebeziumParser

COLUMNS = (
    {"Id": "INT64"}
    | {f"Number{place}": "INT64" for place in range(4)}
    | {"Name": "STRING", "Note": "STRING", "Price": "NUMERIC", "At": "TIMESTAMP", "Open": "BOOL"}
)
TYPES = tuple(
    ColumnType(name, json.dumps({"code": code}), name == "Id", place + 1)
    for place, (name, code) in enumerate(COLUMNS.items())
)


def values(number: int) -> dict[str, Any]:
    """Return the columns of a row besides its key, as Spanner sends them."""
    return {f"Number{place}": str(number * 7919 + place) for place in range(4)} | {
        "Name": f"customer {number}",
        "Note": "a note of some length, as notes are",
        "Price": f"{number}.25",
        "At": "2026-01-31T12:00:00.123456Z",
        "Open": number % 2 == 0,
    }


def record(number: int) -> DataChangeRecord:
    mod = Mod(f'{{"Id":"{number}"}}', json.dumps(values(number)), "{}")
    commit = 1_769_860_800_123_456_000 + number * 1000
    mods = Mods.of([mod])
    about = (TYPES, mods, "INSERT", "NEW_ROW_AND_OLD_VALUES", 1, 1, "", False)
    return DataChangeRecord(commit, "00000001", f"transaction{number}", True, "Orders", *about)


Work = Callable[[], Iterable[Any]]


def contenders(count: int) -> dict[str, Work]:
    """Return what each contender does with all rows."""
    records = [record(number) for number in range(count)]
    rows = [{"Id": number, **values(number)} for number in range(count)]
    convert = EventConverter("project/main", "shop", "All")
    events = [event for each in records for event in convert(each)]
    encoded = [encode_event(event) for event in events]
    envelope = msgspec.json.Encoder().encode
    debezium, ydb = DebeziumFormat("shop"), YdbFormat("feed", mode="NEW_IMAGE", virtual_timestamps=True)
    formats: dict[str, Callable[[ChangeEvent], Any]] = {
        "Debezium JSON": debezium,
        "Debezium JSON with schemas": DebeziumFormat("shop", schemas_enable=True),
        "YDB, NEW_IMAGE": ydb,
        "YDB, Debezium flavour": YdbFormat("feed", mode="NEW_IMAGE", format="DEBEZIUM_JSON"),
        "DynamoDB Streams": DynamoDbFormat(),
        "Spanner to BigQuery": SpannerBigQueryFormat(),
        "CloudEvents of YDB": CloudEventsFormat(YdbFormat("feed")),
        "Debezium in Avro": DebeziumFormat("shop", converter=AvroConverter(SchemaRegistry("mock://avro"))),
        "Debezium in Protobuf": DebeziumFormat(
            "shop", converter=ProtobufConverter(SchemaRegistry("mock://protobuf"))
        ),
    }
    schema, source = events[0].schema, events[0].source
    debezium_parser, ydb_parser = DebeziumParser(schema), YdbParser(schema, source)
    as_debezium = [debezium(event)[0] for event in events]
    as_ydb = [ydb(event)[0] for event in events]
    return {
        "json.dumps of the row": lambda: map(json.dumps, rows),
        "msgspec of the row": lambda: map(envelope, rows),
        "model: record to event": lambda: map(convert, records),
        "coder: event to bytes": lambda: map(encode_event, events),
        "coder: bytes to event": lambda: map(decode_event, encoded),
        "record to Debezium JSON": lambda: (debezium(event) for each in records for event in convert(each)),
        **{name: lambda format_=format_: map(format_, events) for name, format_ in formats.items()},
        "Arrow batches": lambda: arrow_batches(events, timestamp_unit="us"),
        "parse Debezium JSON": lambda: (debezium_parser(each.key, each.value) for each in as_debezium),
        "parse YDB": lambda: (ydb_parser(each.key, each.value) for each in as_ydb),
    }


def seconds(work: Work) -> float:
    started = time.process_time()
    for _ in work():
        pass
    return time.process_time() - started


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(machine())
    work = contenders(given.events)
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(given.rounds):
        for name, each in work.items():
            rates[name].append(given.events / seconds(each))
    baseline = Spread.of(rates["json.dumps of the row"])
    print(heading("10 columns a row", "events per CPU s", "of json.dumps"))
    for name, found in rates.items():
        spread = Spread.of(found)
        print(row(name, spread.text(0), f"{spread.median / baseline.median:.2f}"))


if __name__ == "__main__":
    main()
