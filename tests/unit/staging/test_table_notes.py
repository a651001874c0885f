"""The notes of the tables that a sink has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.io.staging.errors import OutputError
from penstock.io.staging.local import LocalStore
from penstock.io.staging.store import store_of
from penstock.io.staging.table_notes import TableNotes, WrittenTable

ORDERS = WrittenTable("shop.orders", "public", "orders")


def test_the_tables_of_all_drivers_are_noted_once(tmp_path: Path) -> None:
    first, second = (TableNotes(store_of(tmp_path), "job", "0123456789ab") for _ in range(2))
    first.add([ORDERS])
    second.add([ORDERS, WrittenTable("shop.visits", "public", "visits")])
    assert sorted(each.name for each in first.read()) == ["shop.orders", "shop.visits"]


def test_two_drivers_may_note_a_table_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = TableNotes(store_of(tmp_path), "job", "0123456789ab")
    original = LocalStore.create

    def late(self: LocalStore, *arguments: object) -> None:
        """Create the file after another driver has created it."""
        monkeypatch.setattr(LocalStore, "create", original)
        notes.add([ORDERS])
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "create", late)
    notes.add([ORDERS])
    assert notes.read() == [ORDERS]


def test_a_note_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".penstock-staging").write_text("no folder")
    with pytest.raises(OutputError):
        TableNotes(store_of(tmp_path), "job", "0123456789ab").add([ORDERS])
