"""The recorded history of this folder as log records and as events."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from penstock.event import ChangeEvent
from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.column_types import CatalogType
from penstock.io.postgres.decode import decode
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.logged_rows import KINDS, LoggedRows
from penstock.io.postgres.record import ChangeKind, LogRecord, Table
from penstock.io.postgres.transactions import TransactionReader
from tests.unit.postgres.pgoutput import encode

HERE = Path(__file__).parent


def read(name: str) -> Any:
    return json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))


@cache
def records() -> tuple[LogRecord, ...]:
    log = read("log")
    types = {row[0]: CatalogType(*row) for row in log["types"]}
    tables = log["tables"]
    reader = TransactionReader(lambda r, _: describe(r, tables.get(str(r.oid), []), types), 0, 0)
    return tuple(
        step
        for lsn, data in log["messages"]
        for step in reader.read(lsn, decode(base64.b64decode(data)))
        if isinstance(step, LogRecord)
    )


@cache
def events() -> tuple[ChangeEvent, ...]:
    convert = EventConverter("", "history", "changes")
    return tuple(event for record in records() for event in convert(record))


def as_logged(records: Sequence[LogRecord]) -> list[LoggedRows]:
    """Return the rows of transactions among records as the server sends them: one sequence for each transaction."""
    rows = [record for record in records if record.transaction is not None and record.kind in KINDS.values()]
    found = []
    for (transaction, time), each in groupby(
        rows, lambda record: (record.transaction, record.event_timestamp)
    ):
        own = list(each)
        tables = {record.table.oid.to_bytes(4, "big"): record.table for record in own if record.table}
        messages = [(record.lsn, encode(_message(record))) for record in own]
        assert transaction is not None
        sequences = [record.sequence for record in own]
        found.append(LoggedRows(transaction, time, tables, messages, sequences, own[-1].last))
    return found


def _message(record: LogRecord) -> m.Message:
    oid, new, old = cast(Table, record.table).oid, record.new, record.old
    if record.kind is ChangeKind.INSERT:
        return m.Insert(oid, cast(m.Row, new))
    if record.kind is ChangeKind.UPDATE:
        return m.Update(oid, cast(m.Row, new), old, record.old_is_full)
    return m.Delete(oid, cast(m.Row, old), record.old_is_full)


def forget() -> None:
    """Drop what was read of `HERE`, so that the files of another folder are read."""
    records.cache_clear()
    events.cache_clear()
