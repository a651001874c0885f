"""Ranges of an initial snapshot: each block is read once or is known to be lost, whatever crashes."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ChangeStreamError, LineageError, UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import FlatPosition
from penstock.io.change_streams.incremental.channels import Polled
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.options import initial_request
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import PauseSnapshot, ResumeSnapshot, StopSnapshot
from penstock.io.change_streams.options import LimitOptions
from penstock.io.change_streams.range_frontier import RangeAdvanced, RangeRead
from penstock.io.change_streams.range_tracker import RangeTracker
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.coder import LogFrontierCoder
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.incremental.chunks import rows_in_blocks
from penstock.io.postgres.initial_scan import frontier as frontiers
from penstock.io.postgres.initial_scan.coder import ScanCoder
from penstock.io.postgres.initial_scan.copied_rows import ESCAPES, CopiedRows, rows_of
from penstock.io.postgres.initial_scan.frontier import (
    BlockRange,
    LogFrontier,
    RangeLost,
    RangeProgress,
    ScanFrontier,
    ScannedTable,
    ScanView,
    SignalsTaken,
    begun,
    divided,
    numbers_of_rows,
)
from penstock.io.postgres.initial_scan.pool import ScanPool
from penstock.io.postgres.initial_scan.signals import SignalPosition, SignalSource, SignalStream
from penstock.io.postgres.initial_scan.stream import (
    CHUNK_BYTES,
    BlockStream,
    Copied,
    RangePosition,
    ViewLostError,
    next_blocks,
)
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.record import ChangeKind
from tests.unit.postgres.test_snapshot_chunks import table

VIEW = ReadView("5:9:6", 100, 50, "exported", 1)
CODER = ScanCoder(LogFrontierCoder())


def planned(sizes: dict[str, int], keyless: str = "", slot: str = "slot") -> LogFrontier:
    """Return the frontier of a slot that has planned to read tables with so many blocks."""
    progress, _ = SnapshotProgress().with_initial(initial_request()).resolved("initial", list(sizes))
    blocks = tuple((name, size, name != keyless) for name, size in sizes.items())
    position = Position(90, 0, "system", snapshots=progress, initial=VIEW, blocks=blocks)
    return LogFrontier({slot: FlatPosition(list(position), 50)}, None)


def stored(frontier: Any) -> Any:
    return CODER.decode(CODER.encode(frontier))


@pytest.mark.parametrize("seed", range(40))
def test_each_block_is_read_once_or_its_table_is_read_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of several workers, split anywhere; epochs that crash; a table or the whole snapshot is lost."""
    draw = random.Random(f"initial scan {seed}")
    monkeypatch.setattr(frontiers, "MIN_BLOCKS", draw.randrange(1, 12))
    sizes = {f"public.t{number}": draw.randrange(1, 60) for number in range(draw.randrange(1, 5))}
    keyless = draw.choice(["", *sizes])
    log = planned(sizes, keyless)
    assert not log.can_progress
    residuals: list[Any] = [begun(stored(log))]
    emitted: Counter[tuple[str, int]] = Counter()
    refused = draw.choice([None, *sizes])
    lost_at = draw.choice([None, draw.randrange(10)])
    for epoch in range(1000):
        whole = ScanFrontier.join(residuals)
        if isinstance(whole, LogFrontier):
            break
        parts = whole.deal(draw.randrange(1, 4))
        assert min(part.watermark for part in parts) == 50
        found: Counter[tuple[str, int]] = Counter()
        after = []
        for part in parts:
            tracker = RangeTracker(stored(part))
            for _ in range(draw.randrange(8)):
                claim(tracker, draw, found, refused, lost=lost_at is not None and epoch >= lost_at)
            split = tracker.try_split(0)
            rest = split[1] if split else tracker.current_restriction()
            after += [] if rest.done else [stored(rest)]
        if draw.random() < 0.7:  # otherwise the epoch is not committed
            residuals, emitted = after, emitted + found
    else:
        pytest.fail("the scan does not end")
    position = Position(*whole.positions["slot"].position)
    assert (position.initial, position.blocks) == (VIEW._replace(name=""), ())
    assert max(emitted.values(), default=0) <= 1, "a block is emitted twice"
    for name, size in sizes.items():
        scan = position.snapshots.scan(name)
        assert scan is not None
        read = {block for table_, block in emitted if table_ == name}
        # A block has as many rows as its number.
        assert scan.rows == sum(read), name
        unread = set(range(size)) - read
        assert scan.scanned is not bool(unread)
        assert scan.cursor == ""
        # Rows without a key must not come twice; a table with a key is read again as a whole.
        wanted = unread if unread and name == keyless else set()
        assert {b for b in range(size) if scan.condition and matches(scan.condition, b)} == wanted


def claim(
    tracker: RangeTracker, draw: random.Random, found: Counter[Any], refused: str | None, *, lost: bool
) -> None:
    frontier = tracker.current_restriction()
    if not frontier.can_progress:
        return
    number = draw.choice(sorted(frontier.ranges))
    rest = frontier.ranges[number]
    name = frontier.tables[rest.table].name
    if lost or (name == refused and draw.random() < 0.2):
        assert tracker.try_claim(RangeLost(number, lost))
    elif rest.start == rest.end:
        assert tracker.try_claim(RangeRead(number))
    else:
        end = draw.randrange(rest.start + 1, rest.end + 1)
        blocks = range(rest.start, end)
        assert tracker.try_claim(RangeAdvanced(number, RangeProgress(end, rest.rows + sum(blocks))))
        found.update((name, block) for block in blocks)


def matches(condition: str, block: int) -> bool:
    """Evaluate the condition of a lost range for a row in a block."""
    either = condition.split(" or ")
    return any(
        int(start.split(",")[0]) <= block < int(end.split(",")[0])
        for start, end in ((each.split("'(")[1], each.split("'(")[2]) for each in either)
    )


def test_ranges_cover_all_blocks_and_are_few() -> None:
    sizes = [1, 5_000_000, 0, 1024, 1025]
    ranges = list(divided(sizes))
    assert len(ranges) < frontiers.MAX_RANGES + 2 * len(sizes)
    for number, size in enumerate(sizes):
        own = [each for each in ranges if each.table == number]
        assert [each.start for each in own] == [0, *(each.end for each in own)][: len(own)]
        assert sum(each.end - each.start for each in own) == size


def test_tables_without_blocks_have_no_range_and_are_finished() -> None:
    scan = begun(planned({"public.t": 0, "public.u": 1, "public.v": 0}))
    assert scan.ranges == {0: BlockRange(1, 0, 1)}
    log = scan.apply(RangeRead(0)).settled()
    progress, reports = Position(*log.positions["slot"].position).snapshots.finished_by_scan()
    assert progress.snapshots == ()
    assert [(report.table, report.status) for report in reports[:-1]] == [
        (name, ScanStatus.EMPTY) for name in ("public.t", "public.u", "public.v")
    ]
    assert isinstance(begun(planned({"public.t": 0})).settled(), LogFrontier)


def test_a_checkpoint_without_a_plan_has_the_same_bytes_as_before() -> None:
    position = Position(7, 0, "system", published="x")
    encoded = CODER.encode(LogFrontier({"slot": FlatPosition(list(position), 5)}, None))
    assert encoded == b'{"end":null,"positions":{"slot":[[7,0,"system",0,null,[],0,null,"x"],5]},"v":1}'
    with_plan = planned({"public.t": 3})
    assert stored(with_plan) == with_plan


def test_a_range_of_another_part_cannot_be_claimed() -> None:
    first, second = begun(planned({"public.t": 2000})).deal(2)
    (number,) = second.ranges
    with pytest.raises(LineageError):
        RangeTracker(first).try_claim(RangeRead(number))
    with pytest.raises(LineageError, match="0 parts .* hold its log"):
        ScanFrontier.join([second])
    with pytest.raises(LineageError, match="same range"):
        ScanFrontier.join([first, second, second])


def test_the_log_waits_for_counts_and_lost_ranges_of_every_part() -> None:
    """A part that ended with rows or lost ranges must not vanish: the whole would know nothing of them."""
    first, second = begun(planned({"public.t": 2000})).deal(2)
    (number,) = second.ranges
    second = second.apply(RangeLost(number, False))
    assert not second.done
    assert not second.can_progress
    assert second.exhausted().done
    (number,) = first.ranges
    log = ScanFrontier.join([first.apply(RangeRead(number)), second])
    assert not Position(*log.positions["slot"].position).snapshots.scan("public.t").scanned


def signalled(frontier: Any, *signals: Any) -> Any:
    """Return the frontier after signals."""
    progress = frontier.progress["slot"]
    for signal in signals:
        progress, _ = progress.receive(signal)
    return frontier.apply(SignalsTaken("slot", progress))


def read_range(frontier: Any, number: int, rows: int) -> Any:
    end = frontier.ranges[number].end
    return frontier.advanced({number: RangeProgress(end, rows)}).apply(RangeRead(number))


def test_a_pause_ends_the_scan_and_the_log_begins() -> None:
    first, second = begun(planned({"public.t": 2, "public.u": 3, "public.v": 4}, keyless="public.v")).deal(2)
    first = first.advanced({2: RangeProgress(1, 10)})
    paused = signalled(first, PauseSnapshot("1"))
    assert not paused.can_progress
    assert not paused.done
    log = ScanFrontier.join([stored(paused), read_range(second, 1, 30)])
    position = Position(*log.positions["slot"].position)
    assert (position.snapshots.paused, position.initial, position.blocks) == (
        True,
        VIEW._replace(name=""),
        (),
    )
    scans = {scan.table: scan for scan in position.snapshots.current.tables}  # type: ignore[union-attr]
    assert [(name, scan.rows, scan.scanned) for name, scan in scans.items()] == [
        ("public.t", 0, False),
        ("public.u", 30, True),
        ("public.v", 10, False),
    ]
    assert scans["public.v"].condition == "(ctid >= '(1,0)'::tid and ctid < '(4,0)'::tid)"
    resumed = signalled(first, PauseSnapshot("1"), ResumeSnapshot("2"))
    assert ScanFrontier.join([resumed, second]).ranges.keys() == {0, 1, 2}


def test_a_stop_leaves_out_the_ranges_of_its_tables() -> None:
    first, second = begun(planned({"public.t": 2, "public.u": 3, "public.v": 4})).deal(2)
    whole = ScanFrontier.join([signalled(first, StopSnapshot("3", ("public.u",))), second])
    assert whole.ranges.keys() == {0, 2}
    log = ScanFrontier.join([signalled(first, StopSnapshot("3", ())), second])
    assert Position(*log.positions["slot"].position).snapshots.snapshots == ()
    with pytest.raises(LineageError, match="does not have the log"):
        second.apply(SignalsTaken("slot", first.progress["slot"]))


class Signals:
    """A channel with one signal at each place."""

    name = "folder"

    def __init__(self, signals: list[Any]) -> None:
        self.signals, self.closed = signals, 0

    def poll(self, position: Any) -> Polled | None:
        at = position or 0
        return Polled(self.name, self.signals[at : at + 1], at + 1) if at < len(self.signals) else None

    def close(self) -> None:
        self.closed += 1


def test_signals_are_taken_once_while_ranges_are_read() -> None:
    progress = begun(planned({"public.t": 2, "public.u": 3})).progress["slot"]
    channel = Signals([StopSnapshot("3", ("public.t",)), PauseSnapshot("1")])
    source = SignalSource("shop", lambda: [channel], 0, True)

    def stream(at: SnapshotProgress) -> SignalStream:
        return SignalStream(SignalPosition("slot", at, 50), source)

    taken = stream(progress)
    reading = taken.read(Reading())  # type: ignore[arg-type]
    steps = [next(reading), next(reading)]
    assert [mark.progress.channel("folder") for ((_, _, mark),) in steps] == [1, 2]
    assert [taken.records(each)[0].document["type"] for each in steps] == ["TABLE_SCAN_COMPLETED", "PAUSED"]
    ((_, _, mark),) = steps[0]
    assert mark.progress.current is not None
    assert mark.progress.current.names == ("public.u",)
    # A reader that begins at the first step does not take its signal again.
    again = stream(taken.position(mark).progress)
    ((_, _, after),) = next(again.read(Reading()))  # type: ignore[arg-type]
    assert after == steps[1][0][2]
    again.close()
    assert channel.closed == 1


class Reading:
    stopped = False

    def opened(self, call: Any) -> Any:
        return call


class Blocks:
    """Blocks with one row each; `errors` are raised by reads."""

    def __init__(self, errors: list[Exception | None] = ()) -> None:  # type: ignore[assignment]
        self.errors, self.read = list(errors), list[tuple[int, int]]()
        self.closed = 0

    def read_blocks(self, name: str, start: int, end: int, stopped: Any) -> Copied:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.read.append((start, end))
        return Copied(table("a"), b"1\t1\t1\n" * (end - start), end - start)

    def close(self) -> None:
        self.closed += 1


def stream_of(blocks: Blocks, *, number: int = 3, start: int = 0, chunk_rows: int = 4) -> BlockStream:
    @contextmanager
    def borrow(slot: str, view: ScanView) -> Any:
        yield blocks

    rest = BlockRange(0, start, 10, start)
    at = RangePosition(rest, ScannedTable("slot", "public.t", True), ScanView(VIEW, 90, 50))
    return BlockStream(number, at, borrow, chunk_rows)


def test_a_range_that_breaks_off_continues_after_its_last_block() -> None:
    blocks = Blocks([None, UnreachableError("lost")])
    stream = stream_of(blocks)
    steps: list[Any] = []
    with pytest.raises(UnreachableError):
        for some in stream.read(Reading()):  # type: ignore[arg-type]
            steps += some
    for some in stream.read(Reading()):  # type: ignore[arg-type]
        steps += some
    assert blocks.read == [(0, 4), (4, 8), (8, 10)]
    marks = [mark for _, _, mark in steps]
    assert marks == [
        *(RangeAdvanced(3, RangeProgress(end, end)) for end in (4, 8, 10)),
        RangeRead(3),
    ]
    assert stream.position(marks[1]).range == BlockRange(0, 8, 10, 8)
    assert [record.lsn for _, rows, _ in steps if rows for record in rows] == [90] * 10


def test_rows_without_a_key_have_ids_of_their_own_and_the_same_ones_in_other_chunks() -> None:
    """Two ranges, read in chunks of several sizes; a reader that starts again in the middle."""

    def ids(number: int, chunk_rows: int, start: int = 0) -> list[str]:
        stream = stream_of(Blocks(), number=number, start=start, chunk_rows=chunk_rows)
        chunks = [rows for some in stream.read(Reading()) for _, rows, _ in some if rows]  # type: ignore[arg-type]
        return [event.id for rows in chunks for row in rows for event in EventConverter()(row)]

    first, second = ids(0, 4), ids(1, 4)
    assert len({*first, *second}) == len(first) + len(second) == 20
    assert ids(0, 3) == first
    assert ids(0, 7, start=4) == first[4:]


@pytest.mark.parametrize(
    ("error", "whole"), [(ViewLostError("gone"), True), (ChangeStreamError("rewritten"), False)]
)
def test_a_range_that_the_server_refuses_is_lost(error: Exception, whole: bool, caplog: Any) -> None:
    (*_, last) = stream_of(Blocks([None, error])).read(Reading())  # type: ignore[arg-type]
    assert [mark for _, _, mark in last] == [RangeLost(3, whole)]
    assert "first snapshot of the database" in caplog.text


def test_chunks_follow_the_size_of_rows() -> None:
    assert next_blocks(16, 800, 80_000, 10_000) == 128, "it grows step by step"
    assert next_blocks(128, 6_400, 640_000, 10_000) == 200
    assert next_blocks(128, 6_400, 64 * CHUNK_BYTES, 10_000) == 2, "large values"
    assert next_blocks(1, 500, 500, 10) == 1
    assert next_blocks(16, 0, 0, 10_000) == 128, "empty blocks"


def test_connections_end_with_the_last_range_that_is_open() -> None:
    made: list[Blocks] = []

    def make(slot: str, view: ScanView) -> Blocks:
        made.append(Blocks())
        return made[-1]

    limits = Limits.checked(LimitOptions())
    pool = ScanPool(make, Backoff("PostgreSQL", UnavailableError), limits, 10)
    view = ScanView(VIEW, 90, 50)
    with pool._borrow("slot", view):
        with pool._borrow("slot", view):
            pass
        with pool._borrow("slot", view) as again:
            assert again is made[1]
        assert [each.closed for each in made] == [0, 0]
    assert [each.closed for each in made] == [1, 1]
    with pytest.raises(UnreachableError), pool._borrow("slot", view):
        raise UnreachableError("lost")
    assert made[2].closed == 1, "a broken connection is lent again"
    with pool.prefetching(begun(planned({"public.t": 1}))):
        for _ in range(2):
            with pool._borrow("slot", view):
                pass
        assert [each.closed for each in made[3:]] == [0], "a bundle opens connections for each range"
    assert made[3].closed == 1


values = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


def as_copied(rows: list[tuple[str | None, ...]]) -> bytes:
    """Write rows as the server does."""
    escape = {character: text for text, character in ESCAPES.items()}

    def value(text: str | None) -> str:
        return "\\N" if text is None else "".join(escape.get(each, each) for each in text)

    return "".join("\t".join(map(value, row)) + "\n" for row in rows).encode()


@given(st.lists(st.tuples(values, values), min_size=1, max_size=4))
def test_rows_have_the_values_that_the_server_has_written(rows: list[tuple[str | None, ...]]) -> None:
    data = as_copied(rows)
    assert rows_of(data) == rows
    numbers = numbers_of_rows(2, 7, len(rows))
    copied = CopiedRows(table("a", "b"), data, numbers, 90, 50)
    assert (copied[0].new, copied[0].sequence) == (rows[0], numbers[0]), "the first one alone"
    records = list(copied)
    assert [(each.new, each.sequence) for each in records] == list(zip(rows, numbers, strict=True))
    assert {(each.kind, each.lsn, each.commit_timestamp) for each in records} == {(ChangeKind.READ, 90, 50)}
    assert len(copied) == len(rows)


def test_a_partitioned_table_is_read_with_its_partitions_and_another_one_alone() -> None:
    texts = [rows_in_blocks(table("a"), kind, ["a > 1", "b"], 3, 9).as_string() for kind in "pr"]
    where = "where ctid >= '(3,0)'::tid and ctid < '(9,0)'::tid and (a > 1) and (b)"
    assert texts == [
        f'copy (select "a", "b", "c" from {only}"public"."t" {where}) to stdout' for only in ("", "only ")
    ]
