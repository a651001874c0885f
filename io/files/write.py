"""`WriteToJsonLines`: elements as JSON Lines files. The work is done by `penstock.io.staging`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from penstock.event.model import Source
from penstock.io.files.json_lines import JsonLines, json_line
from penstock.io.files.names import Key, bucket_name, event_hour, stable_hash
from penstock.io.files.options import JsonLinesSinkOptions
from penstock.io.staging.blocks import BucketRun, RecordRun
from penstock.io.staging.names import folder_name
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.staged_file import PublishedFile
from penstock.io.staging.store import store_of
from penstock.io.staging.transform import WriteStagedFiles


class WriteToJsonLines(JsonLinesSinkOptions, beam.PTransform):
    """Write elements as JSON Lines files: exactly once, in order per key, only complete files.

        records | WriteToJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)

    creates ``/data/out/<table>/<yyyy-mm-ddThh>/<shard>-of-<shards>_….jsonl`` and emits a `PublishedFile` for each file.
    The hour comes from the element's event time (UTC). A file appears complete under its name, never changes and never
    appears again; consumers may take files away as soon as they see them. Everything below ``.penstock-staging``
    belongs to the pipeline.

    Order: sort the names of one table, hour and shard as text, then read line by line: the lines of each key are in the
    order in which its elements arrived, or with `in_event_time_order` in the order of their event times. There is no
    order between tables, hours or shards, and none between two runs of a pipeline if neither was resumed from the
    other's checkpoint, except that job names sort by time.
    What repeats: nothing on `PySparkRunner`. Other runners repeat bundles: they may leave files in the staging folder,
    and publish each element as often as they commit it.
    Watermark: each open file holds the output watermark at its earliest event time until the file is published.
    State: for each table, hour and shard the lines since the last roll, at most about `roll_bytes`.

    Raises:
        ValueError, TypeError: an argument is wrong (at construction).
        OutputError: the output folder cannot be created or written. Applying the transform only looks at the path; the
            check before a start (`penstock.preflight`) creates the folder.
    """

    def __post_init__(self) -> None:
        beam.PTransform.__init__(self)
        table, key, shard, shards = self.table, self.key, self.shard, self.shards
        if not isinstance(shards, int) or shards < 1:
            # Checked at construction: an error in a worker comes minutes later and without the user's line.
            raise ValueError(f"shards must be 1 or more, got {shards!r}.")
        if not callable(table) and not (isinstance(table, str) and table):
            raise TypeError(f"table must be a name or a function of an element, got {table!r}.")
        for name, function in (("key", key or str), ("shard", shard or str), ("format", self.format)):
            if not callable(function):
                raise TypeError(f"{name} must be a function of an element, got {function!r}.")
        if key is not None and shard is not None:
            raise ValueError("key and shard both choose the shard: pass one of them.")
        if shards > 1 and key is None and shard is None:
            # With several shards and no key, records of one key would lose their order.
            raise ValueError(f"{shards} shards need a key function: pass key=, or shards=1.")
        self._store = store_of(self.output)
        self._lines = _Lines(table, key, shard, self.format, shards)
        self._policy = RollingPolicy(round(self.roll_seconds * 1e6), self.roll_bytes)
        self._lines_format = JsonLines(self.compression)

    def expand(self, elements: beam.PCollection[Any]) -> beam.PCollection[PublishedFile]:
        return elements | "Write" >> WriteStagedFiles(
            self._store,
            encode=self._lines.encode,
            bucket=self._lines.bucket,
            places=self._lines.places,
            format=self._lines_format,
            policy=self._policy,
            in_event_time_order=self.in_event_time_order,
            marks_complete=self.mark_complete,
            folders=self._folders if isinstance(self.table, str) else None,
        )

    def _folders(self, sources: Sequence[Source]) -> list[str]:
        return [folder_name(str(self.table))]

    def display_data(self) -> dict[str, Any]:
        return {
            "output": self._store.output,
            "table": self.table if isinstance(self.table, str) else "a function of the element",
            "shards": self.shards,
            "roll_seconds": self._policy.after_us / 1e6,
            "roll_bytes": self.roll_bytes,
            "in_event_time_order": self.in_event_time_order,
        }


@dataclass(frozen=True, slots=True)
class _Lines:
    """Turns an element into a line of a bucket. It is a value, so that its methods can be pickled into the pipeline."""

    table: str | Callable[[Any], str]
    key: Callable[[Any], Key] | None
    shard: Callable[[Any], int] | None
    format: Callable[[Any], Any]
    shards: int

    def encode(self, element: Any) -> bytes:
        return json_line(self.format(element))

    def bucket(self, element: Any, event_us: int) -> str:
        table = self.table if isinstance(self.table, str) else self.table(element)
        return bucket_name(table, event_hour(event_us), self._shard(element), self.shards)

    def places(self, run: RecordRun) -> Iterator[BucketRun]:
        """Yield the buckets of the lines of a run, whose key is the pair (table, key)."""
        table, keys, lines, times_us = run
        if self.shards == 1 and event_hour(min(times_us)) == event_hour(max(times_us)):  # nearly always
            yield BucketRun(bucket_name(table, event_hour(times_us[0]), 0, 1), times_us, lines)
            return
        for number, (time_us, line) in enumerate(zip(times_us, lines, strict=True)):
            shard = stable_hash((table, keys[number])) % self.shards if keys and self.shards > 1 else 0
            yield BucketRun(bucket_name(table, event_hour(time_us), shard, self.shards), (time_us,), (line,))

    def _shard(self, element: Any) -> int:
        if self.shard is None:
            # One shard needs no hash, which costs more than the rest of the bucket.
            return stable_hash(self.key(element)) % self.shards if self.key and self.shards > 1 else 0
        shard = self.shard(element)
        if not 0 <= shard < self.shards:
            raise ValueError(f"the shard function returned {shard}; shards are 0 to {self.shards - 1}.")
        return shard
