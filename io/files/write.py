"""`WriteJsonLines` and its three steps: elements to blocks, blocks to staged files, those to published ones.

The rules live elsewhere and are pure or hold the disk: names in `naming`, when a file closes in `rolling`,
what survives a crash in `local`. Here they meet Beam's state, timers and bundles.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.io.files import ordered
from penstock.io.files.local import LocalFolder
from penstock.io.files.naming import (
    Key,
    event_hour,
    final_name,
    lane,
    sink_name,
    stable_hash,
    staged_name,
)
from penstock.io.files.publication import Publication, PublishedFile
from penstock.io.files.rolling import SOON_US, OpenFile, OpenFileCoder, RollRule
from penstock.publish import PublishAfterCommit, current_attempt, current_watermark_us

BLOCK_BYTES = 256 * 1024
"""Lines of one lane travel in blocks; a bundle hands its blocks on when together they have so many bytes."""

_END_US = (1 << 63) - 1

_index = count()
"""Numbers the files that this process stages; within an epoch's attempt they keep the order of a lane."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_line(value: Any) -> bytes:
    """Return one line with its newline: text and bytes as they are, anything else as compact JSON in UTF-8.

    Raises:
        ValueError: text that holds a line break, or a value that JSON has no form for. The message does not
            show the value.
    """
    if isinstance(value, bytes | str):
        line = value if isinstance(value, bytes) else _utf8(value)
        if b"\n" in line or b"\r" in line:
            raise ValueError(
                "the format function gave text with a line break; give one line, or an object to encode."
            )
        return line + b"\n"
    try:
        return _utf8(_encode(value)) + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the format function gave a {type(value).__name__} that is not JSON ({type(error).__name__}): "
            "give dicts, lists, text, finite numbers, booleans and None only."
        ) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "the format function gave text with a lone surrogate, which is not JSON text: decode it properly."
        ) from None


@dataclass(frozen=True, slots=True)
class _Layout:
    """How an element becomes (lane, line)."""

    table: Callable[[Any], str]
    key: Callable[[Any], Key] | None
    format: Callable[[Any], Any]
    shards: int
    ordered: bool = False

    def lane_of(self, element: Any, timestamp_us: int) -> str:
        shard = stable_hash(self.key(element)) % self.shards if self.key else 0
        return lane(self.table(element), event_hour(timestamp_us), shard, self.shards)


@dataclass(slots=True)
class _Block:
    """Lines of one lane on their way through a bundle; `earliest_us` is their lowest event time."""

    earliest_us: int
    lines: list[ordered.Timed] = field(default_factory=list)

    def add(self, line: bytes, timestamp_us: int) -> None:
        self.lines.append((timestamp_us, line))
        self.earliest_us = min(self.earliest_us, timestamp_us)

    def packed(self, in_order: bool) -> bytes:
        return ordered.pack(self.lines) if in_order else b"".join(line for _, line in self.lines)


class ToBlocksFn(beam.DoFn):
    """Element to (lane, block of lines): what one bundle has for a lane travels and is kept together.

    Order: lines of a lane keep the order of the bundle's elements. State: at most `BLOCK_BYTES` of lines,
    within a bundle. Watermark: a block has the earliest event time of its lines.
    """

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        self._blocks: dict[str, _Block] = {}
        self._bytes = 0
        self._lines = Metrics.counter("penstock.io.files", "lines")

    def start_bundle(self) -> None:
        self._blocks, self._bytes = {}, 0

    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam
    ) -> list[TimestampedValue] | None:
        timestamp_us = timestamp.micros
        line = json_line(self._layout.format(element))
        where = self._layout.lane_of(element, timestamp_us)
        block = self._blocks.get(where)
        if block is None:
            block = self._blocks[where] = _Block(timestamp_us)
        block.add(line, timestamp_us)
        self._bytes += len(line)
        return self._hand_on() if self._bytes >= BLOCK_BYTES else None

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for each in self._hand_on():
            yield GlobalWindows.windowed_value(each.value, each.timestamp)

    def _hand_on(self) -> list[TimestampedValue]:
        blocks, self._blocks, self._bytes = self._blocks, {}, 0
        self._lines.inc(sum(len(block.lines) for block in blocks.values()))
        return [
            TimestampedValue((where, block.packed(self._layout.ordered)), Timestamp(micros=block.earliest_us))
            for where, block in blocks.items()
        ]


@beam.typehints.with_output_types(Publication)
class RollFn(beam.DoFn):
    """(Lane, block) to `Publication`: keeps each lane's open file in state and stages it when it rolls.

    Order: blocks of a lane are kept in the order in which they arrive; with `in_order` a roll takes the lines
    that the watermark has passed, by event time, and leaves the others. State: per lane, the lines since the
    last roll, nothing between a roll and the next line. Watermark: held by an open file at its earliest
    event time until it rolls. What repeats: a failed try's staged files, under names of their own.

    While a file is open, one of the timers `roll` and `passed` is set, and that timer holds the watermark at
    the earliest line of the file.
    """

    ROLL = TimerSpec("roll", TimeDomain.REAL_TIME)
    FULL = TimerSpec("full", TimeDomain.REAL_TIME)
    PASSED = TimerSpec("passed", TimeDomain.WATERMARK)
    END = TimerSpec("end", TimeDomain.WATERMARK)
    _lines = beam.DoFn.StateParam(BagStateSpec("lines", BytesCoder()))
    _opened = beam.DoFn.StateParam(ReadModifyWriteStateSpec("open", OpenFileCoder()))
    _roll = beam.DoFn.TimerParam(ROLL)
    _full = beam.DoFn.TimerParam(FULL)
    _passed = beam.DoFn.TimerParam(PASSED)
    _end = beam.DoFn.TimerParam(END)

    def __init__(
        self,
        folder: LocalFolder,
        sink: str,
        rule: RollRule,
        clock: Callable[[], float] = time.time,
        *,
        in_order: bool = False,
    ) -> None:
        self._in_order = in_order
        self._folder = folder
        self._sink = sink
        self._rule = rule
        self._clock = clock
        self._staged: list[str] = []
        self._files = Metrics.counter("penstock.io.files", "staged_files")
        self._bytes = Metrics.counter("penstock.io.files", "staged_bytes")

    def start_bundle(self) -> None:
        self._staged = []

    def process(
        self,
        element: tuple[str, bytes],
        timestamp: Any = beam.DoFn.TimestampParam,
        lines: Any = _lines,
        opened: Any = _opened,
        roll: Any = _roll,
        end: Any = _end,
        full: Any = _full,
        passed: Any = _passed,
    ) -> Iterator[TimestampedValue]:
        where, block = element
        before: OpenFile | None = opened.read()
        now_us = int(self._clock() * 1e6)
        file = before or self._rule.open(now_us)
        file = file.with_block(len(block), timestamp.micros)
        lines.add(block)
        if self._rule.is_full(file):
            if not self._in_order:
                yield self._close(where, file, lines, opened, (roll, end))
                return
            full.set(Timestamp(0))  # `roll` stays as it is: it may hold the watermark at an earlier line
        opened.write(file)
        if before is None or file.earliest_us < before.earliest_us:
            # Beam holds the watermark of a processing-time timer at the element that sets it.
            roll.set(Timestamp(micros=self._rule.due_us(file, now_us)))
            end.set(GlobalWindow().max_timestamp())
            if self._in_order:
                passed.clear()

    @on_timer(ROLL)
    def on_roll(
        self,
        where: str = beam.DoFn.KeyParam,
        lines: Any = _lines,
        opened: Any = _opened,
        roll: Any = _roll,
        end: Any = _end,
        passed: Any = _passed,
    ) -> Iterator[TimestampedValue]:
        file = opened.read()
        if file is None:
            return
        if self._in_order and (watermark_us := current_watermark_us()) is not None:
            yield from self._take_passed(where, file, watermark_us, lines, opened, roll, passed, end)
        else:
            yield self._close(where, file, lines, opened, (roll, end))

    @on_timer(FULL)
    def on_full(
        self,
        where: str = beam.DoFn.KeyParam,
        lines: Any = _lines,
        opened: Any = _opened,
        roll: Any = _roll,
        end: Any = _end,
        passed: Any = _passed,
    ) -> Iterator[TimestampedValue]:
        """Roll a full file now, or as soon as the watermark has passed its earliest line."""
        file = opened.read()
        if file is None or not self._rule.is_full(file):
            return  # `roll` was due in this epoch too and has taken what made the file full
        if current_watermark_us() is None:
            yield self._close(where, file, lines, opened, (roll, passed, end))
            return
        # `passed` fires in this epoch if the watermark is at the earliest line or above it, and rolls the file.
        # This callback cannot set `roll`: that timer would hold the watermark at the line that filled the file.
        opened.write(file.due_at_once())
        roll.clear()
        passed.set(Timestamp(micros=file.earliest_us))

    @on_timer(PASSED)
    def on_passed(
        self,
        where: str = beam.DoFn.KeyParam,
        lines: Any = _lines,
        opened: Any = _opened,
        roll: Any = _roll,
        end: Any = _end,
        passed: Any = _passed,
    ) -> Iterator[TimestampedValue]:
        """Roll the file if it is due. Otherwise `roll` waits for that, and holds the watermark meanwhile.

        An event-time timer holds the watermark at the time at which it fires, so this callback runs at the
        earliest line of the file, and a processing-time timer that it sets holds the watermark there.
        """
        file, watermark_us = opened.read(), current_watermark_us()
        if file is None or watermark_us is None:
            return
        now_us = int(self._clock() * 1e6)
        if (due_us := self._rule.due_us(file, now_us)) <= now_us:
            yield from self._take_passed(where, file, watermark_us, lines, opened, roll, passed, end)
        else:
            roll.set(Timestamp(micros=due_us))

    @on_timer(END)
    def on_end(
        self,
        where: str = beam.DoFn.KeyParam,
        lines: Any = _lines,
        opened: Any = _opened,
        roll: Any = _roll,
        end: Any = _end,
        passed: Any = _passed,
    ) -> Iterator[TimestampedValue]:
        if (file := opened.read()) is not None:
            yield self._close(where, file, lines, opened, (roll, passed, end))

    def _take_passed(
        self,
        where: str,
        file: OpenFile,
        watermark_us: int,
        lines: Any,
        opened: Any,
        roll: Any,
        passed: Any,
        end: Any,
    ) -> Iterator[TimestampedValue]:
        """Stage the lines that the watermark has passed; a new open file keeps the others.

        Runs in a callback of the timer that holds the watermark at the earliest line.
        """
        ready, rest = ordered.split(lines.read(), watermark_us)
        now_us = int(self._clock() * 1e6)
        if not ready:
            if file.earliest_us > watermark_us:
                opened.write(file.due_at_once())
                passed.set(Timestamp(micros=file.earliest_us))
            else:  # the watermark is exactly at the line; `passed` would fire again and again in this epoch
                roll.set(Timestamp(micros=now_us + SOON_US))
            return
        publication = self._stage(where, ready)
        yield TimestampedValue(publication, Timestamp(micros=file.earliest_us))
        lines.clear()
        opened.clear()
        roll.clear()
        if rest:
            block = ordered.pack(rest)
            left = self._rule.open(now_us).with_block(len(block), min(at for at, _ in rest))
            lines.add(block)
            opened.write(left)
            # `passed` and not `roll`, which would hold the watermark at a line that is published.
            passed.set(Timestamp(micros=left.earliest_us))
        else:
            end.clear()  # the lane keeps no state

    def finish_bundle(self) -> None:
        self._folder.keep_staged(self._staged)

    def _close(
        self, where: str, file: OpenFile, lines: Any, opened: Any, timers: Iterable[Any]
    ) -> TimestampedValue:
        """Stage the open file and forget it."""
        blocks = lines.read()
        publication = self._stage(where, ordered.split(blocks, _END_US)[0] if self._in_order else blocks)
        lines.clear()
        opened.clear()
        for timer in timers:
            timer.clear()
        return TimestampedValue(publication, Timestamp(micros=file.earliest_us))

    def _stage(self, where: str, blocks: Iterable[bytes]) -> Publication:
        attempt, index = current_attempt(), next(_index)
        name = staged_name(self._sink, attempt, index)
        staged = self._folder.stage(name, blocks)
        self._staged.append(name)
        self._files.inc()
        self._bytes.inc(staged.length)
        return Publication(
            output=self._folder.path,
            staged=name,
            final=final_name(where, attempt, index),
            length=staged.length,
            crc32=staged.crc32,
            lines=staged.lines,
        )


@beam.typehints.with_output_types(PublishedFile)
class MoveFn(beam.DoFn):
    """`Publication` to `PublishedFile`: the post-commit step. Repeating it, however late, changes nothing.

    It never overwrites, and never brings back what a consumer has taken away; it emits the same each time.
    """

    def __init__(self, folder: LocalFolder, sink: str) -> None:
        self._folder = folder
        self._sink = sink
        self._seen: list[Publication] = []
        self._files = Metrics.counter("penstock.io.files", "published_files")

    def start_bundle(self) -> None:
        self._seen = []

    def process(self, publication: Publication) -> Iterator[PublishedFile]:
        self._files.inc(LocalFolder(publication.output).publish(publication))
        self._seen.append(publication)
        path = os.path.join(publication.output, publication.final)
        yield PublishedFile(path, publication.length, publication.crc32, publication.lines)

    def finish_bundle(self) -> None:
        for output in {publication.output for publication in self._seen}:
            LocalFolder(output).keep_published([each for each in self._seen if each.output == output])

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Delete what failed epochs of this sink staged; see `penstock.publish.CleansUp`."""
        keep = {each.staged for each in publications if each.output == self._folder.path}
        self._folder.clean_up(job, self._sink, (generation, epoch), keep)


class WriteJsonLines(beam.PTransform):
    """Write elements as JSON Lines files: exactly once, in order per key, whole files only.

        records | WriteJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)

    gives ``/data/out/<table>/<yyyy-mm-ddThh>/<shard>-of-<shards>_….jsonl`` and emits a `PublishedFile` for
    each. The hour is that of the element's event time (UTC). A file appears whole under its name, never
    changes and never appears again; consumers may take files away as soon as they see them. Everything
    below ``.penstock-staging`` belongs to the pipeline.

    Order: within a lane (table, hour, shard) names, then lines, are in the order in which the elements of
    each key came, or with `in_event_time_order` in that of their event times; sort the names as text. Between
    lanes there is none, and none between two runs of one pipeline that are not resumed from each other's
    checkpoint, except that job names rise with time.
    Crashes: on `PySparkRunner` nothing is lost and nothing doubled. Another runner that repeats bundles may
    leave files in the staging folder, and publishes each element as often as it commits it.
    Watermark: the output's is held by each open file at its earliest event time, and released when the
    file is published. State: per lane the lines since the last roll, at most about `roll_bytes`.

    Args:
        output: a local folder (on a cluster: one that all workers and the driver see under this path).
        table: the table's name, or a function from an element to it. Any text: names are percent-encoded.
        key: a function from an element to its order key: str, bytes, int, or a tuple of them. It picks the
            shard. Needed when there is more than one shard.
        format: a function from an element to a value that JSON can carry, or to a line as str or bytes.
        shards: how many files of a table and hour may be open side by side.
        roll_seconds: an open file is published this long after its first line came (processing time);
            0 publishes with every epoch.
        roll_bytes: an open file of this many bytes or more is published at once; with `in_event_time_order`
            at the end of the epoch.
        in_event_time_order: a roll takes the lines that the watermark has passed, by event time; the others
            wait. So names and lines of a lane are in event-time order whichever reader they came from, and
            however far apart the readers are; what it costs is the distance to the watermark, and a source
            whose watermark stands still publishes nothing. False: lines keep the order in which they come,
            which is the commit order of each key where the source promises that. Only `PySparkRunner` tells
            a sink the watermark; on other runners each file is in order in itself.

    Raises:
        ValueError, TypeError: an argument is wrong (at construction).
        OutputError: the output folder cannot be created or written. Applying the transform only looks at the
            path; `check`, which `penstock.preflight` calls before a pipeline starts, creates the folder.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        table: str | Callable[[Any], str],
        key: Callable[[Any], Key] | None = None,
        format: Callable[[Any], Any] = lambda element: element,
        shards: int = 1,
        roll_seconds: float = 10,
        roll_bytes: int = 64 * 1024 * 1024,
        in_event_time_order: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(shards, int) or shards < 1:
            raise ValueError(f"shards must be 1 or more, got {shards!r}.")
        if not callable(table) and not (isinstance(table, str) and table):
            raise TypeError(f"table must be a name or a function of an element, got {table!r}.")
        for name, function in (("key", key or str), ("format", format)):
            if not callable(function):
                raise TypeError(f"{name} must be a function of an element, got {function!r}.")
        if shards > 1 and key is None:
            raise ValueError(f"{shards} shards need a key function: pass key=, or shards=1.")
        self._folder = LocalFolder(_local_path(os.fspath(output)))
        self._layout = _Layout(
            table if callable(table) else _Constant(table), key, format, shards, in_event_time_order
        )
        self._rule = RollRule(round(roll_seconds * 1e6), roll_bytes)

    def check(self) -> None:
        """Create the output folder if it is missing, and write a temporary file into it.

        Raises:
            OutputError: the folder cannot be created or written; the message says why and what to do.
        """
        self._folder.check_writable()

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        self._folder.check_location()
        sink = sink_name(elements.pipeline.transforms_stack[-1].full_label)
        return (
            elements
            | "Global" >> beam.WindowInto(GlobalWindows())
            | "ToBlocks" >> beam.ParDo(ToBlocksFn(self._layout)).with_output_types(tuple[str, bytes])
            | "Roll" >> beam.ParDo(RollFn(self._folder, sink, self._rule, in_order=self._layout.ordered))
            | "Publish" >> PublishAfterCommit(MoveFn(self._folder, sink))
        )


@dataclass(frozen=True, slots=True)
class _Constant:
    value: str

    def __call__(self, element: Any) -> str:
        return self.value


def _local_path(output: str) -> str:
    """Return the absolute path of `output`; workers may run in other folders.

    Raises:
        ValueError: it is a URL, or empty.
    """
    if not output:
        raise ValueError("the output is empty; pass a folder.")
    if "://" in output:
        raise ValueError(
            f"the output {output} is a URL; only local folders can be written. "
            "Pass a path that the driver and all workers share."
        )
    return os.path.abspath(output)
