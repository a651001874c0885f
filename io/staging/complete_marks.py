"""The marks of an output that say until when it is complete. No Beam.

    <output>/_complete/<job>_<sink>_<record, 12 digits>.json   {"complete_until": "2026-01-31T12:00:00.000000000Z", …}

A driver that was paused may write its mark after its successor has written newer ones. So no mark is overwritten: each
has the number of its commit record, and the highest number counts. Readers of data lakes skip names that begin with an
underscore.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any

import msgspec

from penstock.compat import UTC
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import folder_name
from penstock.io.staging.store import FileStore, store_of
from penstock.timestamps import format_timestamp, parse_timestamp

_FOLDER = "_complete"
_MARK = re.compile(r"(.+_[0-9a-f]{12}_)(\d{12})\.json")
_TRIES = 10
"""How often a reader lists the marks again because a newer one has replaced what it wanted to read."""


def mark_complete(store: FileStore, job: str, sink: str, record: int, until_us: int) -> None:
    """Leave the mark of a commit record in an output, and remove the older marks of this sink.

    Raises:
        OutputError: the store refused, or the mark exists.
    """
    prefix = f"{_FOLDER}/{folder_name(job)}_{sink}_"
    name = f"{prefix}{record:012d}.json"
    until = format_timestamp(until_us * 1000)
    content = msgspec.json.encode({"complete_until": until, "job": job, "record": record})
    store.create(name, [content + b"\n"])
    store.sync([name])
    # After the new mark, so that a reader always finds one.
    store.delete(each for each in store.names_in(_FOLDER) if each.startswith(prefix) and each < name)


def complete_until(output: str | os.PathLike[str]) -> dict[str, datetime]:
    """Return by job until when it has completed an output; empty without a mark.

    The output has every change of the job with a commit time below (not at) the time, except dead letters. The time of
    a job never falls. A job that has ended keeps its last time, and so does one that was started again with a new
    checkpoint, which is another job.

    Raises:
        OutputError: the output cannot be read.
    """
    store = store_of(output)
    for left in reversed(range(_TRIES)):
        try:
            marks = [msgspec.json.decode(store.read(name)) for name in _newest(store)]
            break
        except OutputError:
            if not left:
                raise
    times: dict[str, datetime] = {}
    for mark in marks:
        # A pipeline may have several sinks with one output, which is complete when all of them are.
        until = _time(mark)
        times[mark["job"]] = min(until, times.get(mark["job"], until))
    return times


def _newest(store: FileStore) -> list[str]:
    """Return the names of the newest marks, one for each sink of a job."""
    newest: dict[str, str] = {}
    for name in store.names_in(_FOLDER):  # sorted
        if match := _MARK.fullmatch(name):
            newest[match[1]] = name
    return list(newest.values())


def _time(mark: Any) -> datetime:
    return datetime.fromtimestamp(parse_timestamp(mark["complete_until"]) / 1e9, UTC)
