"""`WriteToBigtable` by deliveries to the emulator: each change has its effect once, and none comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.event import CellChange, ChangeEvent, Op, Source, Version
from penstock.event.model import NO_COLUMNS
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.sink.write import connector_of
from penstock.io.bigtable.source import Connection
from penstock.io.staging.complete_marks import decode_mark
from penstock.io.staging.delivery import Delivery, Sent
from penstock.io.staging.send import SendBatchesFn
from penstock_emulators.bigtable import BigtableEmulator
from tests.integration.emulators.bigtable.client import Client

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

SOURCE = Source("bigtable", "p/i", table="origin")
P = "penstock-test"
NOON_US = 1_769_860_800_000_000  # 2026-01-31T12:00:00Z


@pytest.fixture(scope="module")
def emulator() -> Iterator[BigtableEmulator]:
    with BigtableEmulator.start() as running:
        yield running


class Target:
    def __init__(self, emulator: BigtableEmulator, name: str) -> None:
        self.client = Client(emulator.host, name)
        self.client.create({"f": {}, "g": {}, "penstock": {}})
        self.target = BigtableTarget(P, P, name, Connection(emulator_host=emulator.host))

    def deliver(self, *events: ChangeEvent, **options: Any) -> Sent:
        sender = connector_of(self.target).open(skip_refused=options.get("skip_refused", False))
        try:
            return sender.send(Delivery("s", "j", 0, 1, 1, 1), list(events))
        finally:
            sender.close()

    def cells(self) -> Any:
        """The cells outside of the family of versions."""
        rows = {
            key: [(*place, value) for place, value in cells.items() if place[0] != "penstock"]
            for key, cells in self.client.cells().items()
        }
        return {key: cells for key, cells in rows.items() if cells}


@pytest.fixture
def target(emulator: BigtableEmulator, request: pytest.FixtureRequest) -> Target:
    return Target(emulator, f"copy-{abs(hash(request.node.name)) % 10**8}")


def change(number: int, *cells: CellChange, key: bytes = b"row") -> ChangeEvent:
    row = {"row_key": key}
    version = Version(number * 1_000_000, "", f"{0:020d}")
    return ChangeEvent(SOURCE, Op.UPDATE, number, row, None, row, version, NO_COLUMNS, cells=cells)


def put(value: bytes, at: int, family: str = "f") -> CellChange:
    return CellChange("SET_CELL", family, b"q", at, None, value)


DELETE_ROW = tuple(CellChange("DELETE_FAMILY", family) for family in ("f", "g"))


def test_cells_keep_their_timestamps_and_the_later_commit_wins_a_tie(target: Target) -> None:
    target.deliver(change(1, put(b"a", 5000)), change(2, put(b"b", 5000), put(b"old", 1000)))
    assert target.cells() == {b"row": [("f", b"q", 5000, b"b"), ("f", b"q", 1000, b"old")]}


def test_repeated_deletion_removes_nothing_that_was_written_since(target: Target) -> None:
    first = [change(1, put(b"a", 1000)), change(2, *DELETE_ROW)]
    target.deliver(*first)
    target.deliver(change(3, put(b"b", 2000)))
    target.deliver(*first)
    assert target.cells() == {b"row": [("f", b"q", 2000, b"b")]}


def test_older_change_does_not_bring_a_deleted_row_back(target: Target) -> None:
    target.deliver(change(2, *DELETE_ROW))
    target.deliver(change(1, put(b"a", 1000)))
    assert target.cells() == {}


def test_ranges_of_cells_are_deleted(target: Target) -> None:
    target.deliver(*(change(n, put(b"%d" % n, n * 1000)) for n in range(1, 5)))
    target.deliver(change(5, CellChange("DELETE_CELLS", "f", b"q", 2000, 4000)))
    assert target.cells() == {b"row": [("f", b"q", 4000, b"4"), ("f", b"q", 1000, b"1")]}


def test_changes_that_the_sink_wrote_do_not_go_back(target: Target) -> None:
    own = CellChange("SET_CELL", "penstock", b"version", 1000, None, b"x")
    target.deliver(change(1, put(b"a", 1000), own))
    assert target.cells() == {}


def test_input_of_an_aggregate_is_refused_and_the_others_are_written(target: Target) -> None:
    added = change(1, CellChange("ADD_TO_CELL", "f", b"q", 0, None, 1))
    sent = target.deliver(added, change(2, put(b"a", 1000)), skip_refused=True)
    assert [each.index for each in sent.refused] == [0]
    assert target.cells() == {b"row": [("f", b"q", 1000, b"a")]}


def test_the_time_until_which_the_table_is_complete_moves_on_and_never_back(target: Target) -> None:
    marking = replace(target.target, mark_complete=True)

    def mark(record: int, until_us: int, sink: str = "one") -> None:
        SendBatchesFn(connector_of(marking), sink, None).mark_complete("a/job", record, until_us)

    def times() -> dict[bytes, list[int]]:
        return {
            key: [decode_mark(value).until_us for place, value in cells.items() if place[1] == b"mark"]
            for key, cells in target.client.cells().items()
        }

    mark(10, NOON_US)
    # A driver that was paused wakes up.
    mark(9, NOON_US - 1_000_000)
    assert times() == {b"_penstock_complete/a/job/one": [NOON_US]}
    mark(1000, NOON_US + 1)
    mark(11, NOON_US, "two")
    # One cell of each column, whatever the policy of the family keeps.
    assert times() == {
        b"_penstock_complete/a/job/one": [NOON_US + 1],
        b"_penstock_complete/a/job/two": [NOON_US],
    }
    target.deliver(change(1, put(b"a", 1000)))
    assert target.cells() == {b"row": [("f", b"q", 1000, b"a")]}


def test_without_the_option_there_is_no_mark(target: Target) -> None:
    SendBatchesFn(connector_of(target.target), "one", None).mark_complete("job", 10, NOON_US)
    assert target.client.cells() == {}
