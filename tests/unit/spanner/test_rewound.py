"""A change stream that is read again from an earlier time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from penstock.io.postgres.read import ReadPostgresFn
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.preflight import StreamFacts
from penstock.io.spanner.query import ROOT
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.ydb.read import ReadYdbFn

SECOND = 1_000_000_000
NOW = 100_000 * SECOND
HOUR = 3600 * SECOND
READ_FAR = Frontier({"a": Position(NOW), "b": Position(NOW - SECOND)}, {})


class _Fn(ReadSpannerFn):
    """Without a service, whose answers are these."""

    def check(self, stream: Any) -> StreamFacts:
        return StreamFacts("GOOGLE_STANDARD_SQL", ("READ_S",), {})

    def _client(self, stream: Any) -> Any:
        clock = SimpleNamespace(synchronize=lambda: None, now=lambda: NOW)
        return SimpleNamespace(clock=clock, backoff=SimpleNamespace(ask=lambda question, limit: question()))

    def _kept(self, element: Any) -> int:
        return HOUR


def rewound(*restrictions: Any, to: int = NOW - HOUR, **options: Any) -> Any:
    transform = ReadFromSpannerChangeStream(
        project="p", instance="i", database="d", change_stream="S", **options
    )
    return _Fn(transform._settings).rewound(transform.stream, restrictions, to)


def test_the_root_partition_is_read_from_the_time_on_inclusive() -> None:
    again = rewound(*READ_FAR.deal(2))
    assert again == Frontier({ROOT: Position(NOW - HOUR)}, {})


def test_a_time_that_the_stream_no_longer_keeps_is_refused() -> None:
    with pytest.raises(UsageError, match="no longer has the changes from"):
        rewound(READ_FAR, to=NOW - HOUR - 1)


def test_a_first_load_that_has_not_ended_is_refused() -> None:
    with pytest.raises(UsageError, match="still reading the rows"):
        rewound(ScanFrontier(NOW, (), {}, READ_FAR))


def test_requests_for_snapshots_are_not_obeyed_a_second_time(tmp_path: Any) -> None:
    progress = SnapshotProgress().with_channel("folder", ["request-1"])
    parts = IncrementalFrontier(READ_FAR, progress).deal(2)
    again = rewound(*parts, signal_folder=str(tmp_path))
    assert again.progress == progress
    assert again.stream == Frontier({ROOT: Position(NOW - HOUR)}, {})


def test_a_snapshot_that_is_being_read_is_refused(tmp_path: Any) -> None:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("Orders",)))
    with pytest.raises(UsageError, match="the job is reading a snapshot"):
        rewound(IncrementalFrontier(READ_FAR, progress), signal_folder=str(tmp_path))


def test_snapshots_that_are_not_read_again_are_named() -> None:
    fn = ReadSpannerFn(None)
    assert fn.lost_by_rewind([READ_FAR]) == ""
    assert "snapshots" in fn.lost_by_rewind([IncrementalFrontier(READ_FAR, SnapshotProgress())])


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (ReadPostgresFn, "the slot cannot go back"),
        (ReadBigtableFn, "Bigtable estimates"),
        (ReadYdbFn, "offsets"),
    ],
)
def test_other_sources_say_why_they_cannot_go_back(fn: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        fn(None).rewound(None, [], 0)
