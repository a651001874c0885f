"""`WriteToBigtable` by deliveries to the emulator: each change has its effect once, and none comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.event import CellChange, ChangeEvent, Op, Source, Version
from penstock.event.model import NO_COLUMNS
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.sink.write import connector_of
from penstock.io.bigtable.source import Connection
from penstock.io.staging.delivery import Delivery, Sent
from penstock_emulators.bigtable import BigtableEmulator
from tests.integration.emulators.bigtable.client import Client

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

SOURCE = Source("bigtable", "p/i", table="origin")
P = "penstock-test"


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
