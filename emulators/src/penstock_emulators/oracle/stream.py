"""A change stream, read to its end with an ordinary client after the pipeline has run. Slow and simple.

It counts how often partitions split, merged and moved, and returns every data change record. So the output of a
pipeline can be compared with a reader that shares no code with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

_HEARTBEAT_MS = 10_000


@dataclass
class Stream:
    """All data change records as the client returns them, and the events of the partitions.

    `events` counts splits (one parent, several children), merges (a child of several parents) and moves (one parent,
    one child). `partitions` has the parents of each token that was read. `read_from` has the token of each record.
    """

    records: list[list[Any]] = field(default_factory=list)
    read_from: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    partitions: dict[str, list[str]] = field(default_factory=dict)

    def mods(self) -> int:
        """Return the number of changed rows."""
        return sum(len(record[6]) for record in self.records)


def read_stream(database: Any, name: str, start: datetime, end: datetime) -> Stream:
    """Read all partitions and their children from `start` to `end`, both inclusive."""
    stream = Stream()
    waiting: list[tuple[str | None, datetime]] = [(None, start)]
    while waiting:
        token, since = waiting.pop()
        for data, _heartbeats, children in _query(database, name, token, since, end):
            stream.records += data
            stream.read_from += [token or ""] * len(data)
            for child in children:
                waiting += _new_partitions(stream, child, token is None)
    return stream


def strays(stream: Stream) -> int:
    """Count how often the next change of a key is in a partition that does not descend from the previous one.

    On the service this never happens: the keys of a child are among the keys of its parents. The emulator writes
    everything into one partition at a time, and after its end into any other one.
    """
    latest: dict[str, str] = {}
    count = 0
    ordered = sorted(zip(stream.records, stream.read_from, strict=True), key=lambda each: _order(each[0]))
    for record, token in ordered:
        for keys, _new, _old in record[6]:
            before = latest.get(key := f"{record[4]} {keys.serialize()}", token)
            count += before != token and before not in _ancestors(stream.partitions, token)
            latest[key] = token
    return count


def _ancestors(partitions: dict[str, list[str]], token: str) -> set[str]:
    found: set[str] = set()
    waiting = [token]
    while waiting:
        new = set(partitions.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def _order(record: list[Any]) -> tuple[str, str]:
    return _rfc3339(record[0]), record[1]


def as_content(record: list[Any]) -> Iterator[dict[str, Any]]:
    """Turn a record of the client into the contents of lines, one for each mod."""
    for index, (keys, new, old) in enumerate(record[6]):
        yield {
            "commit_timestamp": _rfc3339(record[0]),
            "record_sequence": record[1],
            "server_transaction_id": record[2],
            "is_last_record_in_transaction_in_partition": record[3],
            "table_name": record[4],
            "mod_type": record[7],
            "number_of_records_in_transaction": record[9],
            "number_of_partitions_in_transaction": record[10],
            "mod_index": index,
            "number_of_mods": len(record[6]),
            "keys": dict(keys or {}),
            "new_values": dict(new or {}),
            "old_values": dict(old or {}),
        }


def _new_partitions(stream: Stream, child: list[Any], first: bool) -> Iterator[tuple[str, datetime]]:
    start, _sequence, partitions = child
    for token, parents in partitions:
        if token not in stream.partitions:
            stream.partitions[token] = parents
            if not first:
                stream.events[_event(parents, partitions)] += 1
            yield token, start
    if not first and len(partitions) > 1:
        stream.events["splits"] -= len(partitions) - 1  # one split has several children


def _event(parents: list[str], partitions: list[Any]) -> str:
    if len(parents) > 1:
        return "merges"
    return "splits" if len(partitions) > 1 else "moves"


def _query(
    database: Any, name: str, token: str | None, start: datetime, end: datetime
) -> Iterator[list[Any]]:
    from google.cloud.spanner_v1 import param_types

    statement = f"SELECT ChangeRecord FROM READ_{name}(@start, @end, @token, {_HEARTBEAT_MS}, NULL)"
    types = {"start": param_types.TIMESTAMP, "end": param_types.TIMESTAMP, "token": param_types.STRING}
    with database.snapshot() as snapshot:
        rows = snapshot.execute_sql(
            statement, params={"start": start, "end": end, "token": token}, param_types=types
        )
        for row in rows:
            yield from row[0]


def _rfc3339(time: Any) -> str:
    nanosecond = getattr(time, "nanosecond", time.microsecond * 1000)
    return f"{time.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanosecond:09d}Z"
