"""Arguments of a snapshot: the tables, the time, and the end of the stream after it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from apache_beam import coders

from penstock.errors import PositionLostError, SetupError, UsageError
from penstock.io.spanner import ReadFromSpannerChangeStream, ReadFromSpannerTable
from penstock.io.spanner.initial_scan.frontier import ScanFrontier
from penstock.io.spanner.preflight import StreamFacts
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.table import ReadSpannerTableFn, TableRead

NAMES = {"project": "p", "instance": "i", "database": "d", "emulator_host": "localhost:1"}


def stream_reading(**options: Any) -> ReadFromSpannerChangeStream:
    return ReadFromSpannerChangeStream(**{**NAMES, "change_stream": "S", **options})


def table_reading(**options: Any) -> ReadFromSpannerTable:
    return ReadFromSpannerTable(**{**NAMES, "tables": "T", **options})


@pytest.mark.parametrize(
    ("given", "start", "expected"),
    [
        ({}, None, ""),
        ({"snapshot": "never"}, 5, ""),
        ({"snapshot": False}, 5, ""),
        ({"snapshot": "initial"}, None, "now"),
        ({"snapshot": True}, 5, "at start"),
        ({"snapshot": "initial"}, 5, "at start"),
        ({"snapshot": "when_needed"}, None, "now"),
    ],
)
def test_true_and_false_are_synonyms_of_initial_and_never(given: Any, start: Any, expected: str) -> None:
    assert stream_reading(start=start, **given).stream.snapshot == expected


def test_only_the_chosen_tables_of_a_stream_are_read() -> None:
    assert [table.name for table in planned(stream_reading(snapshot=True, tables=["T"])).tables] == ["T"]
    assert planned(stream_reading(snapshot=True, tables=["U"])).tables == ()


@pytest.mark.parametrize("snapshot", ["always", "", None, 2])
def test_another_value_is_refused(snapshot: Any) -> None:
    with pytest.raises(UsageError, match="initial"):
        stream_reading(snapshot=snapshot)


def test_the_snapshot_is_no_part_of_the_stream_s_identity() -> None:
    with_snapshot, without = stream_reading(snapshot=True, end=9, start=5), stream_reading(end=9, start=5)
    assert with_snapshot.stream.identity == without.stream.identity


def test_a_read_after_the_end_takes_no_second_snapshot() -> None:
    first, second = (
        stream_reading(snapshot=True, start=5, end=9),
        stream_reading(snapshot=True, start=5, end=20),
    )
    following = ReadSpannerFn(second._settings).read_on(first.stream)
    assert following is not None
    assert (following.start, following.end, following.snapshot) == (10, 20, "")


@pytest.mark.parametrize("tables", ["", [], ["T", "T"], {"T": ["a", "a"]}, [7], {}])
def test_tables_that_cannot_be_meant_are_refused(tables: Any) -> None:
    with pytest.raises(UsageError, match="tables"):
        table_reading(tables=tables)


def test_tables_are_a_name_names_or_names_with_columns() -> None:
    assert table_reading(tables="T").stream.tables == (("T", ()),)
    assert table_reading(tables=["T", "s.U"]).stream.tables == (("T", ()), ("s.U", ()))
    assert table_reading(tables={"T": ["a", "b"], "U": []}).stream.tables == (("T", ("a", "b")), ("U", ()))


def test_a_table_snapshot_survives_its_coder() -> None:
    coder = coders.registry.get_coder(TableRead)
    for at in (None, 7):
        snapshot = TableRead("p", "i", "d", (("T", ()), ("U", ("a", "b"))), at)
        assert coder.decode(coder.encode(snapshot)) == snapshot


def test_the_connection_of_a_table_has_the_options_of_a_stream_s() -> None:
    assert table_reading(rpc_priority="LOW")._settings.connection.rpc_priority == "LOW"


FACTS = StreamFacts("GOOGLE_STANDARD_SQL", ("READ_S",), {})


class FakeClient:
    """A database whose stream S keeps changes for an hour; the time is 10,000 s after the epoch."""

    def __init__(self, timestamp: int) -> None:
        from penstock.errors import UnavailableError
        from penstock.io.change_streams.backoff import Backoff

        self.backoff = Backoff("Spanner", UnavailableError)
        self.clock = self
        self.timestamp = timestamp

    def synchronize(self) -> None:
        """Do nothing: the time stands still."""

    def now(self) -> int:
        return 10_000_000_000_000

    def begin(self, timestamp: int | None) -> Any:
        return self if timestamp is None else FakeClient(timestamp)

    def query(self, sql: str, timestamp: int | None) -> list[list[Any]]:
        if "version_retention_period" in sql:
            return [["7d"]]
        if "change_stream_options" in sql:
            return [["S", "retention_period", "1h"], ["S", "value_capture_type", "NEW_ROW"]]
        if "change_streams" in sql:
            return [["S", True]]
        if "index_columns" in sql:
            return [["", "T", "K", "1"]]
        if "information_schema.columns" in sql:
            return [["", "T", "K", "1", "NEVER", "INT64"], ["", "T", "V", "2", "NEVER", "INT64"]]
        if "information_schema.tables" in sql:
            return [["", "T", "BASE TABLE"]]
        return []

    def sample_keys(self, *_: Any) -> list[str]:
        return ['["5"]']


def planned(transform: Any, timestamp: int = 9_999_000_000_000) -> ScanFrontier:
    with patch(
        "penstock.io.spanner.initial_scan.read.scan_client", lambda fn, element: FakeClient(timestamp)
    ):
        found: ScanFrontier = ReadSpannerFn(transform._settings).first_frontier(transform.stream, FACTS)
    return found


def test_a_snapshot_of_now_is_at_the_time_of_the_service_and_the_stream_follows_it() -> None:
    frontier = planned(stream_reading(snapshot=True))
    assert frontier.timestamp == 9_999_000_000_000
    assert frontier.stream.watermark == 9_999_000_000_001
    assert frontier.readable_until == frontier.timestamp + 3600 * 10**9
    assert [(each.start, each.end) for each in frontier.ranges.values()] == [("", '["5"]'), ('["5"]', "")]
    assert frontier.capture == "NEW_ROW"


def test_a_snapshot_at_the_start_is_at_exactly_that_time() -> None:
    assert planned(stream_reading(snapshot=True, start=9_000_000_000_007)).timestamp == 9_000_000_000_007


def test_a_snapshot_whose_changes_the_stream_no_longer_has_is_refused() -> None:
    with pytest.raises(PositionLostError, match="retention_period"):
        planned(stream_reading(snapshot=True, start=6_000_000_000_000))


def test_an_end_at_the_snapshot_leaves_no_changes_and_one_before_it_is_refused() -> None:
    at = 9_999_000_000_000
    assert planned(stream_reading(snapshot=True, start=at, end=at)).stream is None
    assert planned(stream_reading(snapshot=True, start=at, end=at + 1)).stream is not None
    with pytest.raises(SetupError, match="is before"):
        planned(stream_reading(snapshot=True, end=at - 1))


def test_a_table_read_is_divided_for_runners_that_cannot_rebalance() -> None:
    frontier = planned(stream_reading(snapshot=True))
    whole = ScanFrontier(1, frontier.tables, frontier.ranges)
    parts = ReadSpannerTableFn(None).split(None, whole)  # type: ignore[arg-type]
    assert [list(part.ranges) for part in parts] == [[0], [1]]
