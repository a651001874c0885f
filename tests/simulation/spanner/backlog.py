"""Reads a backlog of many partitions in this process and prints its memory as JSON: `python backlog.py 5000 5000000`.

The arguments are the numbers of partitions and of mods. The service is a function that makes the rows when they are
asked for, so that the memory of the process is that of the reader. Everything from the bytes of a message to the
output of the DoFn is the real reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.options import LimitOptions
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.pool import StreamPool
from penstock.io.spanner.position import Position
from penstock.io.spanner.prefetch import Limits, Prefetcher
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.tracker import FrontierCoder
from penstock.timestamps import NANOS, format_timestamp
from tests.unit.spanner.calls import PartialResultSet, heartbeat

MODS_IN_RECORD = 50
BACKLOG = 60 * NANOS
PLACEHOLDER = b"2000-01-01T00:00:00.000000000Z"
COLUMNS = [("Id", '{"code":"INT64"}', True), ("Owner", '{"code":"STRING"}', False)]


def template() -> bytes:
    """Return a message with one record of `MODS_IN_RECORD` mods, committed at `PLACEHOLDER`."""
    message = PartialResultSet()
    kinds = message.values.add().list_value.values.add().list_value.values
    for _ in range(3):
        kinds.add().list_value.SetInParent()
    fields = kinds[0].list_value.values.add().list_value.values
    for text in (PLACEHOLDER.decode(), "00000000", "a" * 20):
        fields.add().string_value = text
    fields.add().bool_value = True
    fields.add().string_value = "Accounts"
    columns = fields.add().list_value.values
    for number, (name, kind, key) in enumerate(COLUMNS, 1):
        column = columns.add().list_value.values
        column.add().string_value = name
        column.add().string_value = kind
        column.add().bool_value = key
        column.add().string_value = str(number)
    mods = fields.add().list_value.values
    for number in range(MODS_IN_RECORD):
        sides = mods.add().list_value.values
        for text in (
            f'{{"Id":"{number}"}}',
            f'{{"Owner":"owner {number}"}}',
            f'{{"Owner":"before {number}"}}',
        ):
            sides.add().string_value = text
    for text in ("UPDATE", "OLD_AND_NEW_VALUES", "1", "1", ""):
        fields.add().string_value = text
    fields.add().bool_value = False
    return bytes(message.SerializeToString())


class Answer:
    """One query: the records of a partition between two times, both inclusive, and a heartbeat."""

    def __init__(self, message: bytes, times: range, start: int, end: int) -> None:
        self._message, self._times, self._start, self._end = message, times, start, end

    def __iter__(self) -> Iterator[bytes]:
        for at in self._times:
            if self._start <= at <= self._end:
                yield self._message.replace(PLACEHOLDER, format_timestamp(at).encode())
        yield heartbeat(self._end).SerializeToString()

    def cancel(self) -> None:
        """Nothing runs on."""


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(partitions: int, mods: int) -> None:
    """Read the backlog and print the figures."""
    message = template()
    begin = time.time_ns() - 2 * BACKLOG
    each = mods // partitions // MODS_IN_RECORD
    times = range(begin + 1, begin + BACKLOG, BACKLOG // each)
    limits = Limits.checked(LimitOptions(), poll_seconds=0.2)

    class Fn(ReadSpannerFn):
        def _pool(self, stream: Any) -> Any:
            def ask(token: str, start: int, end: int) -> Answer:
                return Answer(message, times, start, end)

            backoff = Backoff("Spanner", UnavailableError)
            return StreamPool(
                limits.buffer_bytes,
                lambda ahead: Prefetcher(ask, backoff, limits, begin + BACKLOG, ahead=ahead),
            )

    read = ReadFromSpannerChangeStream(
        project="p", instance="i", database="d", change_stream="S", start=begin, end=begin + BACKLOG,
        emulator_host="h:1",
    )  # fmt: skip
    fn = Fn(read._settings)
    before = resident()
    # Tokens of the service have some 170 characters.
    tokens = [hashlib.sha512(str(number).encode()).hexdigest() + 42 * "-" for number in range(partitions)]
    frontier = Frontier({token: Position(begin) for token in tokens}, {}, begin + BACKLOG)
    began = time.process_time()
    encoded = FrontierCoder().encode(frontier)
    FrontierCoder().decode(encoded)
    coding = time.process_time() - began
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
    estimator = FrontierWatermarkEstimator(beam_watermark(begin))
    began, found, halves = time.process_time(), 0, [0, 0]
    idle = 0
    for number, output in enumerate(fn.process(read.stream, RestrictionTrackerView(tracker), estimator)):
        idle = idle or resident()
        found += len(output.value.mods)
        if number % 200 == 0:
            half = int(2 * found >= mods)
            halves[half] = max(halves[half], resident())
    tracker.check_done()
    assert found == partitions * each * MODS_IN_RECORD
    figures = {
        "partitions": partitions,
        "mods": found,
        "mods_per_cpu_second": round(found / (time.process_time() - began)),
        "kilobytes_per_partition_at_the_first_record": round((idle - before) / partitions / 1e3, 1),
        "checkpoint_bytes_per_partition": round(len(encoded) / partitions),
        "checkpoint_coding_cpu_us_per_partition": round(coding / partitions * 1e6, 1),
        "megabytes_above_start_in_the_first_half": round((halves[0] - before) / 1e6, 1),
        "megabytes_above_start_in_the_second_half": round((halves[1] - before) / 1e6, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
