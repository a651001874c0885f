"""A Bigtable change as lines of JSON, in the two shapes of Google's change stream templates. Pure.

*Change log*: one object for each entry of the change, that is for each cell set or deleted.

    {"row_key":"user#17","mod_type":"SET_CELL","is_gc":false,"tiebreaker":0,
     "commit_timestamp":"2026-01-31T12:00:00.123456000Z","column_family":"cf","column":"name",
     "timestamp":1769860800123000,"value":"Ada", … ,"entry_index":0,"number_of_entries":2}

*Row*: the same fields as cells of a row, each a cell of the family "changelog":

    {"key":"2026-01-31T12:00:00.123456000Z#…","cells":[{"family":"changelog","qualifier":"row_key", … }, … ]}

Row keys, qualifiers and values are bytes. Bytes that are valid UTF-8 become text. Other bytes become {"base64":"…"}, so
they cannot be confused with text. With `base64` all of them are base64 text. Timestamps of cells are
Bigtable's microseconds, as numbers. (`commit_timestamp`, `source_cluster`, `tiebreaker`, `row_key`,
`entry_index`) identifies a line; the entries of one change were applied together, in the order of their index.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from penstock.io.bigtable.record import (
    AddToCell,
    ChangeStreamMutation,
    DeleteCells,
    DeleteFamily,
    Entry,
    MergeToCell,
    MutationType,
    SetCell,
)
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.lines import Line

Fields: TypeAlias = dict[str, Any]

CHANGE_LOG, ROW = "change-log", "row"
"""The two shapes."""

_FAMILY = "changelog"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def change_log_lines(
    change: ChangeStreamMutation, *, instance: str, table: str, shape: str = CHANGE_LOG, base64: bool = False
) -> Iterator[Line]:
    """Yield one line for each entry of `change`, in its order. The key of a line is the row key."""
    show = _always_base64 if base64 else _shown
    # Cells of the row shape get the commit time; Bigtable's timestamps have microseconds.
    write = partial(_as_row, change.commit_timestamp // 1000) if shape == ROW else _encode
    shared = _shared(change, instance, table)
    for index, entry in enumerate(change.entries):
        fields = {
            "row_key": show(change.row_key),
            **_own(entry, show),
            **shared,
            "entry_index": index,
            "number_of_entries": len(change.entries),
        }
        yield Line(table, change.row_key, write(fields))


def _shared(change: ChangeStreamMutation, instance: str, table: str) -> Fields:
    return {
        "is_gc": change.type is MutationType.GARBAGE_COLLECTION,
        "source_instance": instance,
        "source_cluster": change.source_cluster_id,
        "source_table": table,
        "tiebreaker": change.tiebreaker,
        "commit_timestamp": format_timestamp(change.commit_timestamp),
        "low_watermark": format_timestamp(change.estimated_low_watermark),
    }


def _own(entry: Entry, show: Callable[[bytes], Any]) -> Fields:
    """Return the fields of one entry; those that do not apply to its kind are null."""
    fields: Fields = dict.fromkeys(
        # Null members stay, so that all lines have the same members and a schema can be inferred from any of
        # them.
        ("mod_type", "column_family", "column", "timestamp", "timestamp_from", "timestamp_to", "value")
    )
    match entry:
        case SetCell(family, qualifier, at, value):
            fields |= _cell("SET_CELL", family, show(qualifier), at) | {"value": show(value)}
        case DeleteCells(family, qualifier, start, end):
            fields |= {"mod_type": "DELETE_CELLS", "column_family": family, "column": show(qualifier)}
            fields |= {"timestamp_from": start, "timestamp_to": end}
        case DeleteFamily(family):
            fields |= {"mod_type": "DELETE_FAMILY", "column_family": family}
        case AddToCell(family, qualifier, at, given):
            fields |= _cell("ADD_TO_CELL", family, show(qualifier), at) | _input(given, show)
        case MergeToCell(family, qualifier, at, given):
            fields |= _cell("MERGE_TO_CELL", family, show(qualifier), at) | _input(given, show)
        case _:  # encoded as the service sent it: a later release can read it
            fields |= {"mod_type": "UNKNOWN", "value": {"base64": _always_base64(entry.encoded)}}
    return fields


def _cell(kind: str, family: str, column: Any, timestamp: int) -> Fields:
    return {"mod_type": kind, "column_family": family, "column": column, "timestamp": timestamp}


def _input(given: int | bytes, show: Callable[[bytes], Any]) -> Fields:
    """Return the input of an aggregate: a number as a JSON number, an encoded accumulator like any other value."""
    return {"value": given if isinstance(given, int) else show(given)}


def _shown(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        # An object cannot be confused with a text that happens to look like base64.
        return {"base64": _always_base64(data)}


def _always_base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _as_row(timestamp_micros: int, fields: Fields) -> str:
    """Return the fields as the cells of one row. Its key sorts by commit time and is the same after a crash."""
    # The members that identify a line, in the order in which lines sort by time.
    parts = ("commit_timestamp", "source_cluster", "tiebreaker", "row_key", "entry_index")
    key = "#".join(_text(fields[name]) for name in parts)
    cells = [
        {"family": _FAMILY, "qualifier": name, "timestamp": timestamp_micros, "value": value}
        for name, value in fields.items()
        # A row of Bigtable has no null: a cell that is absent is the same.
        if value is not None
    ]
    return _encode({"key": key, "cells": cells})


def _text(value: Any) -> str:
    return value["base64"] if isinstance(value, dict) else str(value)
