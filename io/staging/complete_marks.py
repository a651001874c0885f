"""The marks that say until when a target is complete: their form in all targets, and their files in an output. No Beam.

    <output>/_complete/<job>_<sink>_<record, 12 digits>.json   {"complete_until": "2026-01-31T12:00:00.000000000Z", …}

A driver that was paused may write its mark after its successor has written newer ones. So no mark is overwritten: each
has the number of its commit record, and the highest number counts. Readers of data lakes skip names that begin with an
underscore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from typing_extensions import Self

from penstock.compat import UTC
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import folder_name
from penstock.io.staging.store import FileStore, store_of
from penstock.timestamps import format_timestamp, parse_timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDER = "_complete"
_MARK = re.compile(r"(.+_[0-9a-f]{12}_)(\d{12})\.json")
_TRIES = 10
"""How often a reader lists the marks again because a newer one has replaced what it wanted to read."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says that a target has every change of a sink with a commit time below `complete_until`, as all targets spell it.

    `record` is the number of the commit record, where a target has only one mark for each.
    """

    complete_until: str
    job: str
    sink: str = ""  # absent in the files of earlier versions
    record: int = 0

    @classmethod
    def of(cls, job: str, sink: str, record: int, until_us: int) -> Self:
        """Return the mark for a time in microseconds since 1970."""
        return cls(format_timestamp(until_us * 1000), job, sink, record)

    @property
    def until_us(self) -> int:
        """The time in microseconds since 1970."""
        return parse_timestamp(self.complete_until) // 1000

    @property
    def until(self) -> datetime:
        """The time, in UTC."""
        # Exact, which a number of seconds as a float is not.
        return _EPOCH + timedelta(microseconds=self.until_us)

    @property
    def encoded(self) -> bytes:
        """The mark as JSON."""
        return msgspec.json.encode(self)


decode_mark = msgspec.json.Decoder(Mark).decode


def complete_times(marks: Iterable[Mark]) -> dict[str, datetime]:
    """Return by job until when it has completed a target. Of the marks of one sink the first one counts.

    A pipeline may have several sinks with one target, which is complete when all of them are.
    """
    by_sink: dict[tuple[str, str], datetime] = {}
    for mark in marks:
        by_sink.setdefault((mark.job, mark.sink), mark.until)
    times: dict[str, datetime] = {}
    for (job, _), until in by_sink.items():
        times[job] = min(until, times.get(job, until))
    return times


def mark_complete(store: FileStore, mark: Mark) -> None:
    """Leave a mark in an output, and remove the older marks of its sink.

    Raises:
        OutputError: the store refused, or the mark exists.
    """
    prefix = f"{_FOLDER}/{folder_name(mark.job)}_{mark.sink}_"
    name = f"{prefix}{mark.record:012d}.json"
    store.create(name, [mark.encoded + b"\n"])
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
            marks = [_mark_of(store, name) for name in _newest(store)]
            break
        except OutputError:
            if not left:
                raise
    return complete_times(marks)


def _mark_of(store: FileStore, name: str) -> Mark:
    # Files of earlier versions have the sink in their name only.
    return msgspec.structs.replace(decode_mark(store.read(name)), sink=name.rsplit("_", 2)[1])


def _newest(store: FileStore) -> list[str]:
    """Return the names of the newest marks, one for each sink of a job."""
    newest: dict[str, str] = {}
    for name in store.names_in(_FOLDER):  # sorted
        if match := _MARK.fullmatch(name):
            newest[match[1]] = name
    return list(newest.values())
