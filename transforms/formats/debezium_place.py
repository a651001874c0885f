"""BEGIN, END and the block `transaction` of Debezium's transaction metadata, from the places of events. Pure.

`debezium_transaction` describes the records and gives events their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Op, TransactionPlace
from penstock.transforms.formats.converter import Converter
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.formatted import FormattedRecord


class DataCollection(msgspec.Struct, frozen=True):
    """A table that a transaction changed, and the number of its events."""

    data_collection: str
    event_count: int


class TransactionRecord(msgspec.Struct, frozen=True):
    """The value of a record of the transaction topic; two of the fields are None in a BEGIN."""

    status: str
    id: str
    event_count: int | None
    data_collections: tuple[DataCollection, ...] | None
    ts_ms: int


def blocks_of(event: ChangeEvent, place: TransactionPlace) -> Iterator[dict[str, Any]]:
    """Yield the blocks `transaction` of the records of an event."""
    # An update of the key becomes two records, and each one counts in the transaction.
    for number in count(1):
        # The connector does not count the messages of an application as one collection.
        order = 1 if event.op is Op.MESSAGE else place.table_records + number
        yield {
            "id": _transaction_id(event),
            "total_order": place.records + number,
            "data_collection_order": order,
        }


def boundary_record(
    server: str, event: ChangeEvent, place: TransactionPlace, converter: Converter
) -> FormattedRecord:
    """Return the record of an event BEGIN or END."""
    at = _milliseconds(event)
    if place.boundary == "BEGIN":
        record = TransactionRecord("BEGIN", _transaction_id(event), None, None, at)
    else:
        collections = tuple(DataCollection(*each) for each in place.counts)
        record = TransactionRecord("END", _transaction_id(event), place.records, collections, at)
    topic = f"{server}.transaction"
    key = converter.encoder(topic, "key", _KEY_SCHEMA)({"id": record.id})
    value = converter.encoder(topic, "value", _VALUE_SCHEMA)(msgspec.to_builtins(record))
    return FormattedRecord(topic, key, value, event.timestamp, event.version)


def _transaction_id(event: ChangeEvent) -> str:
    version, place = event.version, event.place
    if event.source.system != "postgresql":
        return version.transaction
    # Debezium writes the position after the commit in the id of END.
    ends = place is not None and place.boundary == "END"
    return f"{version.transaction}:{version.order if ends else int(version.sequence or 0)}"


def _milliseconds(event: ChangeEvent) -> int:
    transaction = event.transaction
    committed = transaction.committed if transaction is not None else None
    # The time of the commit, also where the event has the time of its statement.
    return (event.timestamp if committed is None else committed) // 1_000_000


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
