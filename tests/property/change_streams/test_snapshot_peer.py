"""Cases that a window of the log gets wrong and the visibility rule gets right, and moves of rows between chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.property.change_streams.database import Change, Database, Transaction
from tests.property.change_streams.merging import (
    Read,
    Reader,
    assert_rows_follow_only_what_they_see,
    replayed,
)
from tests.property.change_streams.window import read_with_window


def start(database: Database, kind: str, key: int, other: int = 0) -> Transaction:
    """Write a change into the log; others do not see it yet."""
    transaction = database.begin()
    database.write(transaction, kind, key, other)
    assert transaction.changes
    database.commit(transaction)
    return transaction


def do(database: Database, kind: str, key: int, other: int = 0) -> None:
    database.show(start(database, kind, key, other))


def finish(database: Database) -> None:
    for transaction in list(database.open):
        database.show(transaction)


def void(_: object) -> None:
    """Drop a result."""


def two_rows() -> Database:
    return Database({1: (1, "first1"), 2: (2, "first2")})


def read_log(reader: Reader) -> None:
    while reader.position < len(reader.database.log):
        reader.read_change()
    reader.emit()


def take_chunk(reader: Reader, during: Callable[[], None] = lambda: None) -> None:
    """Read one chunk. `during` happens after its rows were read, and is emitted before they arrive."""
    reader.requested += reader.engine.requests()
    reader.execute()
    during()
    read_log(reader)
    if reader.answered:
        reader.engine.arrived(reader.answered.pop(0))
    reader.emit()


def read_with_engine(database: Database, during: Callable[[], None]) -> list[Any]:
    reader = Reader(database, chunk_rows=10)
    reader.resolve()
    read_log(reader)
    take_chunk(reader, during)
    finish(database)
    while not reader.engine.is_idle:
        take_chunk(reader)
    assert_rows_follow_only_what_they_see(reader.output)
    return reader.output


Case = tuple[Callable[[Database], None], Callable[[Database], None]]
"""What happens before the chunk is read, and after that."""

CASES: dict[str, Case] = {
    "unchanged large value": (lambda database: None, lambda database: do(database, "touch", 1)),
    "commit that others do not see yet": (
        lambda database: void(start(database, "update", 1)),
        lambda database: None,
    ),
    "truncate": (lambda database: None, lambda database: do(database, "truncate", 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_window_loses_what_the_visibility_rule_keeps(case):
    before, during = CASES[case]
    database = two_rows()
    before(database)
    windowed = read_with_window(database, lambda: during(database))
    finish(database)
    assert replayed(windowed) != database.rows

    database = two_rows()
    before(database)
    assert replayed(read_with_engine(database, lambda: during(database))) == database.rows


def test_the_window_emits_a_deleted_row_to_a_consumer_that_skips_deletes():
    database = two_rows()
    windowed = read_with_window(database, lambda: do(database, "delete", 1), skips_deletes=True)
    assert [item.key for item in windowed if isinstance(item, Read)] == [1, 2]

    database = two_rows()
    merged = read_with_engine(database, lambda: do(database, "delete", 1))
    assert [item.key for item in merged if isinstance(item, Read)] == [2]


def test_a_chunk_after_a_restart_contains_the_changes_that_were_emitted_before_it():
    database = two_rows()
    reader = Reader(database, chunk_rows=10)
    reader.resolve()
    start(database, "update", 1)
    read_log(reader)
    reader.commit()
    reader.crash()
    take_chunk(reader)  # others do not see the update yet
    finish(database)
    while not reader.engine.is_idle:
        take_chunk(reader)
    assert replayed(reader.output) == database.rows


def test_a_row_that_moves_to_keys_that_were_read_is_delivered_whole():
    database = Database({1: (1, "first1"), 9: (9, "first9")})
    reader = Reader(database, chunk_rows=1)
    reader.resolve()
    take_chunk(reader)
    do(database, "move", 9, 0)
    read_log(reader)
    while not reader.engine.is_idle:
        take_chunk(reader)
    assert replayed(reader.output) == database.rows


def test_a_row_that_moves_away_and_back_while_it_is_read_by_its_key_is_delivered_whole():
    database = Database({1: (1, "first1"), 9: (9, "first9")})
    reader = Reader(database, chunk_rows=1)
    reader.resolve()
    take_chunk(reader)
    do(database, "move", 9, 0)
    read_log(reader)
    do(database, "move", 0, 8)
    # The row is not there when its key is read, and comes back before the answer is used.
    take_chunk(reader, lambda: do(database, "move", 8, 0))
    while not reader.engine.is_idle:
        take_chunk(reader)
    assert replayed(reader.output) == database.rows


def test_a_full_change_replaces_the_row_of_a_chunk():
    database = two_rows()
    output = read_with_engine(database, lambda: do(database, "update", 1))
    assert [item.key for item in output if isinstance(item, Read)] == [2]
    assert [item.key for item in output if isinstance(item, Change)] == [1]
