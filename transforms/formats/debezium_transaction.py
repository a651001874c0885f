"""Transaction metadata of Debezium (`provide.transaction.metadata`). Pure.

The topic `<server>.transaction` has a record BEGIN and a record END for each transaction, with the key `{"id": …}`:

    {"status":"BEGIN","id":"571:53195829","event_count":null,"data_collections":null,"ts_ms":1486500577125}
    {"status":"END","id":"571:53195832","event_count":2,"data_collections":[
     {"data_collection":"s1.a","event_count":2}],"ts_ms":1486500577691}

Each record of a change then has a block `transaction` with its place in the transaction and among the records of its
table.
An id of PostgreSQL is the id of the transaction and the position of the record, so it differs within a transaction:
consumers group by the part before the colon. The id of END has the position of the commit; Debezium writes the position
after it.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL", Transaction metadata. The order of the members
and the schemas come from records of its engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.event import NO_COLUMNS, ChangeEvent, Op, Source, TransactionPlace
from penstock.transforms.formats.converter import Converter, JsonConverter
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.tables import table_name

TRANSACTIONS = "transaction"
"""The table of BEGIN and END: Debezium's topic without the name of the server."""


def placed_events(format: DebeziumFormat, events: Sequence[ChangeEvent]) -> list[ChangeEvent]:
    """Return BEGIN, all events of a transaction with their places among its records, and END.

    `format` says how many records an event becomes. It formats the events that are returned.

    Raises:
        ValueError: there is no event.
    """
    placed = []
    # Counted over records instead of events: a skipped operation has no record, and a change of the key has
    # two.
    counts: Counter[str] = Counter()
    for event in events:
        table = table_name(event.source)
        placed.append(_at(event, TransactionPlace(counts.total(), counts[table])))
        if records := format.count(event):
            counts[table] += records
    return [_begin(events), *placed, _end(events, counts)]


def format_transaction(format: DebeziumFormat, events: Sequence[ChangeEvent]) -> list[FormattedRecord]:
    """Return BEGIN, the records of all events of a transaction with their `transaction` blocks, and END.

    Raises:
        ValueError: there is no event, or the options of the format cannot express a value.
    """
    return [record for event in placed_events(format, events) for record in format(event)]


def transaction_records(
    server: str, events: Sequence[ChangeEvent], converter: Converter | None = None
) -> list[FormattedRecord]:
    """Return BEGIN and END of a transaction, given all its events in their order.

    A change of a primary key counts as two events, because it becomes two records. Messages and truncates count as
    one; `format_transaction` does not count operations that its format skips.

    Raises:
        ValueError: there is no event.
    """
    format = DebeziumFormat(server, skipped_operations="none", converter=converter or JsonConverter())
    begin, *_, end = placed_events(format, events)
    return [*format(begin), *format(end)]


def _begin(events: Sequence[ChangeEvent]) -> ChangeEvent:
    if not events:
        raise ValueError("a transaction without events has no metadata records")
    # One before the first event, and one after the last: the version orders all records of a transaction.
    return _boundary(events[0], -1, TransactionPlace(0, 0, "BEGIN"))


def _end(events: Sequence[ChangeEvent], counts: Counter[str]) -> ChangeEvent:
    place = TransactionPlace(counts.total(), 0, "END", tuple(counts.items()))
    return _boundary(events[-1], 1, place)


def _boundary(event: ChangeEvent, step: int, place: TransactionPlace) -> ChangeEvent:
    source, version = event.source, event.version
    return ChangeEvent(
        Source(source.system, source.server, source.database, "", TRANSACTIONS, source.stream),
        Op.MESSAGE,
        event.timestamp,
        # The key and the images are empty: BEGIN and END are no rows.
        None,
        None,
        None,
        # A place of its own in the order: ids of events are made of it, and consumers drop repeats by their ids.
        msgspec.structs.replace(version, index=version.index + step),
        NO_COLUMNS,
        event.transaction,
        place=place,
    )


def _at(event: ChangeEvent, place: TransactionPlace) -> ChangeEvent:
    return msgspec.structs.replace(event, place=place)
