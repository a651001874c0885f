"""Changes through our YDB format into a topic, and through the source back: the same events, for every mode."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Image, Interval, Op, Source, Transaction, Version
from penstock.io.ydb import ReadFromYdbChangefeed, Table, TableColumn
from penstock.transforms.formats.ydb import YdbFormat
from penstock.transforms.formats.ydb_events import EventConverter, table_schema
from penstock.transforms.formats.ydb_position import partition_of
from penstock_emulators.ydb import YdbEmulator
from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow

COLUMNS = {
    "id": "Uint64",
    "part": "Utf8",
    "flag": "Bool",
    "big": "Int64",
    "ratio": "Double",
    "raw": "String",
    "at": "Timestamp",
    "day": "Date",
    "doc": "Json",
    "price": "Decimal(22,9)",
    "tag": "Uuid",
    "took": "Interval",
}
KEY = ("id", "part")
PARTITIONS = 3
MODES = ("KEYS_ONLY", "UPDATES", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
CHANGEFEEDS = [("JSON", mode) for mode in MODES] + [
    ("DEBEZIUM_JSON", mode) for mode in MODES if mode != "UPDATES"
]


def values(draw: random.Random) -> Image:
    made: Image = {
        "flag": draw.random() < 0.5,
        "big": draw.randrange(-(2**63), 2**63),
        "ratio": draw.choice((0.1, -1e300, float("inf"))),
        "raw": draw.randbytes(5),
        "at": draw.randrange(4 * 10**15) * 1000,
        "day": draw.randrange(40_000),
        "doc": '{"a":[1,null]}',
        "price": Decimal(draw.randrange(10**9)).scaleb(-4),
        "tag": "5b99a330-04ef-4f1a-9b64-ba6d5f44eafe",
        "took": Interval(nanoseconds=draw.randrange(10**9) * 1000),
    }
    return {name: None if draw.random() < 0.2 else value for name, value in made.items()}


def history(table: Table, count: int) -> list[tuple[ChangeEvent, Image]]:
    """Return changes of a database with whole images, each with the columns that it wrote."""
    draw, rows = random.Random(1), {}  # type: ignore[var-annotated]
    source = Source("ydb", "", "/local", "", table.name, table.changefeed, table.mode)
    made = []
    for number in range(count):
        key = {"id": draw.randrange(8), "part": draw.choice("aü\n")}
        before = rows.get(tuple(key.values()))
        written = values(draw)
        if before is None:
            op, after = Op.CREATE, key | written
        elif draw.random() < 0.3:
            op, after, written = Op.DELETE, None, {}
        else:
            written = dict(draw.sample(sorted(written.items()), 3))
            op, after = Op.UPDATE, before | written
        rows[tuple(key.values())] = after
        step, tx_id = 1_790_000_000_000 + number // 2, 562_949_953_421_312 + number
        event = ChangeEvent(
            source,
            op,
            step * 1_000_000,
            key,
            before,
            after,
            Version(step, f"{tx_id:020d}"),
            table_schema(table),
            Transaction(str(tx_id)),
        )
        made.append((event, written))
    return made


def given_to_format(event: ChangeEvent, written: Image, mode: str) -> ChangeEvent:
    """Return what a source with this capture type would give: in mode UPDATES the written columns only."""
    if mode != "UPDATES" or event.after is None or event.key is None:
        return event
    return msgspec.structs.replace(event, before=None, after=event.key | written)


def shown(event: ChangeEvent, written: Image, mode: str) -> tuple[Any, ...]:
    """Return what a changefeed of this mode tells of a change: operation, key, row before and row after."""
    before = event.before if mode in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES") else None
    op, after, key = event.op, event.after, event.key or {}
    if op is Op.CREATE and mode != "NEW_AND_OLD_IMAGES":
        op = Op.UPDATE
    if after is not None and mode in ("KEYS_ONLY", "OLD_IMAGE"):
        after = key
    elif after is not None and mode == "UPDATES":
        after = key | written
    return op, event.key, before, after, event.timestamp, event.transaction


@pytest.mark.parametrize(("format", "mode"), CHANGEFEEDS)
def test_events_survive_the_way_through_a_changefeed(service: YdbEmulator, format: str, mode: str) -> None:
    name, control = f"round-{format}-{mode}", service.control
    debezium = format == "DEBEZIUM_JSON"
    control.create_table(name, COLUMNS, KEY)
    options = {"virtual_timestamps": not debezium, "barrier_seconds": 0}
    control.add_changefeed(name, "feed", mode=mode, format=format, partitions=PARTITIONS, **options)
    columns = tuple(TableColumn(column, type_, True) for column, type_ in COLUMNS.items())
    changes = history(Table(name, "feed", mode, format, columns, KEY), 80)
    to_records = YdbFormat("feed", mode=mode, format=format, virtual_timestamps=not debezium)  # type: ignore[arg-type]
    for event, written in changes:
        for record in to_records(given_to_format(event, written, mode)):
            assert record.key is not None
            assert record.value is not None
            partition = partition_of(record.key, PARTITIONS)
            control.write(f"{name}/feed", partition, [record.value], [record.key if debezium else b""])
    read = Epochs(
        ReadFromYdbChangefeed(
            endpoint=service.endpoint, database="/local", table=name, changefeed="feed", delivery_seconds=0
        ),
        2,
    )
    for _ in range(100):
        if len(read.committed) >= len(changes):
            break
        read.run(0.1)
    convert = EventConverter(database="/local")
    found = [event for record in read.committed for event in convert(record)]
    assert {event.source for event in found} == {changes[0][0].source}
    place = {event.transaction: number for number, (event, _) in enumerate(changes)}
    for event in found:
        original, written = changes[place[event.transaction]]
        actual = (event.op, event.key, event.before, event.after, event.timestamp, event.transaction)
        assert actual == shown(original, written, mode)
    of_key: dict[Any, list[int]] = {}
    for event in found:
        of_key.setdefault(tuple((event.key or {}).values()), []).append(place[event.transaction])
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
    assert len({event.transaction for event in found}) == len(changes)
