"""Transaction metadata of Debezium: the records BEGIN and END of the topic `<server>.transaction`, and back. Pure.

    {"status":"BEGIN","id":"571:53195829","ts_ms":1486500577125,"event_count":null,"data_collections":null}
    {"status":"END","id":"571:53195832","ts_ms":1486500577691,"event_count":2,"data_collections":[
     {"data_collection":"s1.a","event_count":2}]}

The key of both is `{"id": …}`. They have no embedded schema.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL", Transaction metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.event import ChangeEvent, Op
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
    ts_ms: int
    event_count: int | None = None
    data_collections: tuple[DataCollection, ...] | None = None


_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TransactionRecord).decode


def transaction_records(server: str, events: Sequence[ChangeEvent]) -> list[FormattedRecord]:
    """Return BEGIN and END of a transaction, given all its events in their order.

    A change of a primary key counts as two events, because it becomes two records. Messages and truncates count as
    one.

    Raises:
        ValueError: there is no event.
    """
    if not events:
        raise ValueError("a transaction without events has no metadata records")
    first, last = events[0], events[-1]
    counts: Counter[str] = Counter()
    for event in events:
        counts[table_name(event.source)] += 2 if _moves(event) else 1
    id_ = first.version.transaction
    collections = tuple(DataCollection(name, count) for name, count in counts.items())
    begin = TransactionRecord("BEGIN", id_, first.timestamp // 1_000_000)
    end = TransactionRecord("END", id_, last.timestamp // 1_000_000, counts.total(), collections)
    key, topic = _json({"id": id_}), f"{server}.transaction"
    return [
        FormattedRecord(topic, key, _json(record), event.timestamp, event.version)
        for record, event in ((begin, first), (end, last))
    ]


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
