"""What tables of a lake lack or have too much, compared with the source and its audit. Pure.

`rows` are those of a table as `tests.support.table_readers.read_tables` returns them. Columns that the source did not
have at the time of a change, or does not have any more, are not compared. An answer has the first faults only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tests.integration.sinks.audited_writers import Audit, Change, Key, Row, RowVersion, key_of

FAULTS_TOLD = 5
_OPS = {"INSERT": "CREATE"}
"""What a log calls a kind of change, if PostgreSQL calls it otherwise."""


def log_faults(audit: Audit, rows: Sequence[Row]) -> list[str]:
    """Compare a log with the changes of each key: each once, in their order, with all values that were sent."""
    versions = Counter(row["metadata"]["version"] for row in rows)
    repeated = (f"{times} times version {each}" for each, times in versions.items() if times > 1)
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["metadata"]["version"]):
        found[_logged_key(audit.table, row)].append(row)
    return _first([*repeated, *_differences(audit.by_key(), found, _change_fault)])


def current_faults(table: str, source: Mapping[Key, Row], rows: Iterable[Row]) -> list[str]:
    """Compare a table of current rows with the rows of the source."""
    found = defaultdict(list)
    for row in rows:
        if not row["_penstock_deleted"]:
            found[key_of(table, row)].append(row)
    return _first(_differences({key: [row] for key, row in source.items()}, found, _values_fault))


def history_faults(audit: Audit, rows: Iterable[Row]) -> list[str]:
    """Compare a history with all versions of each row: values, begin, end, and why it ended."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["_penstock_version"]):
        found[key_of(audit.table, row)].append(row)
    return _first(_differences(audit.versions(), found, _version_fault))


def _differences(
    expected: Mapping[Key, list[Any]], found: Mapping[Key, list[Row]], fault: Any
) -> Iterator[str]:
    for key in expected.keys() | found.keys():
        wanted, rows = expected.get(key, []), found.get(key, [])
        if len(wanted) != len(rows):
            yield f"{key}: {len(rows)} rows instead of {len(wanted)}"
            continue
        for number, (each, row) in enumerate(zip(wanted, rows, strict=True)):
            if text := fault(each, row):
                yield f"{key}, row {number} of {len(rows)}: {text}"


def _logged_key(table: str, row: Row) -> Key:
    return key_of(table, row["key"]) if row["key"] else ()


def _change_fault(change: Change, row: Row) -> str:
    wanted = _OPS.get(change.kind, change.kind), change.committed_at
    if (row["op"], row["timestamp"]) != wanted:
        return f"{row['op']} at {row['timestamp']} instead of {wanted}"
    if change.new is None:
        return "a row after the deletion" if row["after"] else ""
    not_sent = row["metadata"]["not_sent"] or ()
    return _values_fault(
        {name: value for name, value in change.new.items() if name not in not_sent}, row["after"]
    )


def _version_fault(version: RowVersion, row: Row) -> str:
    wanted = version.begun_at, version.ended_at, version.deleted
    times = row["_penstock_timestamp"], row["_penstock_valid_to"], row["_penstock_deleted"]
    return f"{times} instead of {wanted}" if times != wanted else _values_fault(version.values, row)


def _values_fault(wanted: Row, row: Row) -> str:
    # Values may be long texts, so only their names and beginnings are told.
    return ", ".join(
        f"{name} is {str(row.get(name))[:40]} instead of {str(value)[:40]}"
        for name, value in wanted.items()
        if name not in row or row[name] != value
    )


def _first(faults: Iterable[str]) -> list[str]:
    return list(islice(faults, FAULTS_TOLD))
