"""The recorded history of this folder as log records and as events."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from penstock.event import ChangeEvent
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.column_types import CatalogType
from penstock.io.postgres.decode import decode
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import LogRecord
from penstock.io.postgres.transactions import TransactionReader

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


def forget() -> None:
    """Drop what was read of `HERE`, so that the files of another folder are read."""
    records.cache_clear()
    events.cache_clear()
