"""Transaction metadata of Debezium (`provide.transaction.metadata`), and back. Pure.

The topic `<server>.transaction` has a record BEGIN and a record END for each transaction, with the key `{"id": …}`:

    {"status":"BEGIN","id":"571:53195829","event_count":null,"data_collections":null,"ts_ms":1486500577125}
    {"status":"END","id":"571:53195832","event_count":2,"data_collections":[
     {"data_collection":"s1.a","event_count":2}],"ts_ms":1486500577691}

Each record of a change then has a block `transaction` with its place in the transaction and among the records of its
table.
An id of PostgreSQL is the id of the transaction and the position of the record, so it differs within a transaction:
consumers group by the part before the colon.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL", Transaction metadata. The order of the members
and the schemas are those of records of its engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Op
from penstock.transforms.formats.converter import Converter, JsonConverter
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.tables import table_name


class DataCollection(msgspec.Struct, frozen=True):
    """A table that a transaction changed, and the number of its events."""

    data_collection: str
    event_count: int


class TransactionRecord(msgspec.Struct, frozen=True):
    """The value of a record of the transaction topic; the last two fields are None in a BEGIN."""

    status: str
    id: str
    event_count: int | None
    data_collections: tuple[DataCollection, ...] | None
    ts_ms: int


_decode = msgspec.json.Decoder(TransactionRecord).decode


def format_transaction(format: DebeziumFormat, events: Sequence[ChangeEvent]) -> list[FormattedRecord]:
    """Return BEGIN, the records of all events of a transaction with their `transaction` blocks, and END.

    Raises:
        ValueError: there is no event, or the options of the format cannot express a value.
    """
    return [record for _, records in transaction_parts(format, events) for record in records]


def transaction_parts(
    format: DebeziumFormat, events: Sequence[ChangeEvent]
) -> list[tuple[ChangeEvent | None, list[FormattedRecord]]]:
    """Return the records of `format_transaction` with their event, which is None for BEGIN and END.

    Raises:
        ValueError: see `format_transaction`.
    """
    blocks = _Blocks()
    of_events = [(event, format.records(event, blocks.of(event))) for event in events]
    counts: Counter[str] = Counter()
    for event, records in of_events:
        if values := sum(record.value is not None for record in records):
            counts[table_name(event.source)] += values
    begin, end = _frame(format.server, events, counts, format.value_converter)
    return [(None, [begin]), *of_events, (None, [end])]


class _Blocks:
    """Counts the records of a transaction."""

    def __init__(self) -> None:
        self._total = 0
        self._tables: Counter[str] = Counter()

    def of(self, event: ChangeEvent) -> Iterator[dict[str, Any]]:
        """Yield the blocks of the records of an event."""
        table = table_name(event.source)
        while True:
            self._total += 1
            self._tables[table] += 1
            # The connector does not count the messages of an application as one collection.
            order = 1 if event.op is Op.MESSAGE else self._tables[table]
            yield {
                "id": _transaction_id(event),
                "total_order": self._total,
                "data_collection_order": order,
            }


def _transaction_id(event: ChangeEvent, position: int | None = None) -> str:
    version = event.version
    if event.source.system != "postgresql":
        return version.transaction
    return f"{version.transaction}:{int(version.sequence or 0) if position is None else position}"


def transaction_records(
    server: str, events: Sequence[ChangeEvent], converter: Converter | None = None
) -> list[FormattedRecord]:
    """Return BEGIN and END of a transaction, given all its events in their order.

    A change of a primary key counts as two events, because it becomes two records. Messages and truncates count as
    one; `format_transaction` does not count operations that its format skips. The position in the id of END is that of
    the commit; Debezium writes the position after it.

    Raises:
        ValueError: there is no event.
    """
    counts: Counter[str] = Counter()
    for event in events:
        counts[table_name(event.source)] += 2 if _moves(event) else 1
    return _frame(server, events, counts, converter)


def _frame(
    server: str, events: Sequence[ChangeEvent], counts: Counter[str], converter: Converter | None
) -> list[FormattedRecord]:
    if not events:
        raise ValueError("a transaction without events has no metadata records")
    first, last = events[0], events[-1]
    collections = tuple(DataCollection(name, count) for name, count in counts.items())
    begin = TransactionRecord("BEGIN", _transaction_id(first), None, None, _milliseconds(first))
    end_id = _transaction_id(last, last.version.order)
    end = TransactionRecord("END", end_id, counts.total(), collections, _milliseconds(last))
    topic, used = f"{server}.transaction", converter or JsonConverter()
    encode_key = used.encoder(topic, "key", _KEY_SCHEMA)
    encode_value = used.encoder(topic, "value", _VALUE_SCHEMA)
    return [
        FormattedRecord(
            topic,
            encode_key({"id": record.id}),
            encode_value(msgspec.to_builtins(record)),
            event.timestamp,
            event.version,
        )
        for record, event in ((begin, first), (end, last))
    ]


def _milliseconds(event: ChangeEvent) -> int:
    transaction = event.transaction
    committed = transaction.committed if transaction is not None else None
    return (event.timestamp if committed is None else committed) // 1_000_000


def parse_transaction_record(value: bytes) -> TransactionRecord:
    """Return the record of a value of the transaction topic.

    Raises:
        ValueError: not such a record.
    """
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a transaction metadata record of Debezium: {error}") from None


def _moves(event: ChangeEvent) -> bool:
    before, key = event.before, event.key
    return (
        event.op is Op.UPDATE
        and before is not None
        and key is not None
        and any(before.get(name, value) != value for name, value in key.items())
    )


_COLLECTION: Schema = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "data_collection"},
        {"type": "int64", "optional": False, "field": "event_count"},
    ],
    "optional": True,
    "name": "event.collection",
    "version": 1,
}
_KEY_SCHEMA: Schema = {
    "type": "struct",
    "fields": [{"type": "string", "optional": False, "field": "id"}],
    "optional": False,
    "name": "io.debezium.connector.common.TransactionMetadataKey",
    "version": 1,
}
_VALUE_SCHEMA: Schema = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "status"},
        {"type": "string", "optional": False, "field": "id"},
        {"type": "int64", "optional": True, "field": "event_count"},
        {"type": "array", "items": _COLLECTION, "optional": True, "field": "data_collections"},
        {"type": "int64", "optional": False, "field": "ts_ms"},
    ],
    "optional": False,
    "name": "io.debezium.connector.common.TransactionMetadataValue",
    "version": 1,
}
