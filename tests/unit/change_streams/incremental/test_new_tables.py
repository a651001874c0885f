"""Which tables joined a stream since the last look, and that each is requested once."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.frontier import TableMove
from penstock.io.change_streams.incremental.channels import Polled
from penstock.io.change_streams.incremental.engine import ChunkRequest, FailedChunk, TableGoneError
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.merge import StreamMerge
from penstock.io.change_streams.incremental.new_tables import (
    CHANNEL,
    LOOK_SECONDS,
    KnownTables,
    NewTablesChannel,
)
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.options import SnapshotOptions, initial_request
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.worker import SnapshotWorker
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.incremental.merging import SpannerRecords


def known(watched: str, others: str = "", *, watches_all: bool = False) -> KnownTables:
    return KnownTables(frozenset(watched), frozenset(others), watches_all)


@pytest.mark.parametrize(
    ("before", "now", "joined", "left"),
    [
        (known("a", "b"), known("ab"), "b", ""),
        (known("a"), known("ab"), "b", ""),  # created, filled and then added to the stream
        (known("a", watches_all=True), known("ab", watches_all=True), "", ""),
        (known("a", "b"), known("abc", watches_all=True), "bc", ""),  # the stream has all tables only now
        (known("ab"), known("a", "b"), "", "b"),
        (known("ab"), known("a"), "", "b"),
        (known("ab"), known("ab", "c"), "", ""),
    ],
)
def test_rows_of_a_table_are_missing_unless_the_stream_had_it_from_its_first_row_on(
    before: KnownTables, now: KnownTables, joined: str, left: str
) -> None:
    assert (before.joined(now), before.left(now)) == (list(joined), list(left))


def test_what_is_known_survives_packing_and_is_short() -> None:
    many = KnownTables(frozenset(f"table_{number}" for number in range(2000)), frozenset("b"), True)
    assert KnownTables.unpack(many.pack()) == many
    assert len(many.pack()) < 10_000
    assert known("ba").pack() == known("ab").pack()


def test_tables_are_looked_at_every_minute_and_those_that_are_not_read_are_not_requested() -> None:
    now, answers = [0.0], [known("a"), known("abc"), known("abc"), known("c")]
    channel = NewTablesChannel(
        lambda: answers.pop(0), lambda table: table != "c", clock=lambda: now[0], now=lambda: 7
    )
    assert channel.poll(None) == Polled(CHANNEL, (), known("a").pack())
    assert channel.poll(known("a").pack()) is None
    assert len(answers) == 3
    now[0] += LOOK_SECONDS
    joined = msgspec.structs.replace(known("abc"), moves=(TableMove("b", True, 7),)).pack()
    assert channel.poll(known("a").pack()) == Polled(CHANNEL, (), joined, {"b": ""}, [])
    now[0] += LOOK_SECONDS
    assert channel.poll(joined) is None
    now[0] += LOOK_SECONDS
    polled = channel.poll(joined)
    assert polled is not None
    assert (polled.joined, polled.left) == ({}, ["a", "b"])
    at = frontier(SnapshotProgress().with_channel(CHANNEL, polled.position))
    assert at.table_moves == (TableMove("a", False, 7), TableMove("b", False, 7))
    assert frontier(SnapshotProgress()).table_moves == ()


def frontier(progress: SnapshotProgress) -> IncrementalFrontier:
    return IncrementalFrontier(Frontier.starting_at(0, None), progress)


def merging(at: IncrementalFrontier) -> tuple[StreamMerge, Any, list[Any]]:
    """Return a merge, its worker, and what the worker is asked for."""
    asked: list[Any] = []
    worker: Any = SimpleNamespace(
        answers=queue.SimpleQueue(), ask=asked.append, poll_channels=lambda positions: None
    )
    options = SnapshotOptions(new_tables="snapshot")
    merge = StreamMerge(
        SpannerRecords(), worker, options, "stream", at, notifications=False, dead_letters=False
    )
    return merge, worker, asked


def test_one_claim_has_the_request_and_the_tables_that_are_known_after_it() -> None:
    at = frontier(SnapshotProgress().with_channel(CHANNEL, known("a").pack()))
    merge, worker, _ = merging(at)
    worker.answers.put(Polled(CHANNEL, (), known("ab").pack(), {"b": ""}))
    merge.look(at)
    _, claim = merge.next_claim()
    assert claim.progress.channel(CHANNEL) == known("ab").pack()
    assert [each.request.tables for each in claim.progress.snapshots] == [("b",)]
    # A bundle that repeats the claim looks from the position before, and one that follows it looks from the new one.
    assert NewTablesChannel(lambda: known("ab"), lambda _: True).poll(claim.progress.channel(CHANNEL)) is None


def test_a_table_that_is_gone_does_not_fail_an_initial_snapshot() -> None:
    progress, _ = SnapshotProgress().with_initial(initial_request()).resolved("initial", ["a", "b"])
    merge, worker, asked = merging(frontier(progress))
    merge.look(frontier(progress))
    (of_a,) = [each for each in asked if getattr(each, "table", "") == "a"]
    worker.answers.put(FailedChunk(of_a, ScanStatus.UNKNOWN_SCHEMA, "a is gone"))
    _, claim = merge.next_claim()
    merge.row_claimed()
    merge.look(frontier(claim.progress))
    assert merge.progress.snapshots[0].names == ("b",)


class Gone:
    def __init__(self, *errors: ChangeStreamError) -> None:
        self.errors, self.reads = list(errors), 0

    def read(self, request: ChunkRequest) -> Any:
        self.reads += 1
        raise self.errors.pop(0)

    def close(self) -> None: ...


def test_a_table_that_is_gone_is_not_asked_for_again() -> None:
    reader: Any = Gone(TableGoneError("gone"))
    worker = SnapshotWorker(
        lambda stopped: reader, lambda: (), None, threads=1, poll_seconds=1, unavailable_seconds=1
    )
    request = ChunkRequest(1, "a", "", (), 10)
    assert worker._answer(reader, request) == FailedChunk(request, ScanStatus.UNKNOWN_SCHEMA, "gone")
    assert reader.reads == 1
