"""The source of the kill campaigns of sinks: four writers, whose statements follow from their numbers.

The statement `number` of a writer does not depend on what was read before, so a splittable DoFn can start anywhere,
and the rows and the log that a target must have at the end follow from the last number alone.

A round is nine statements. Six are about one row: CREATE (or a key change back), two partial UPDATEs, of which the
second one changes the large value, a change of the key, a partial UPDATE, and a DELETE or another partial UPDATE. If
the row was deleted, the last three create it again, give it back the key that it had first, and delete it. If it stays,
they exchange its key with that of the row that stayed before it, through a third key.

The large value `big` is sent only when it changes, as PostgreSQL does with large values, so no change of a key has it.
One writer also makes one event that targets refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from penstock.event import CellChange, ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.model import NO_COLUMNS

WRITERS = ("w0", "w1", "w2", "w3")
PER_SECOND = 12
"""Statements of each writer."""
ROUND, SLOTS = 9, 59
_START = 1_763_740_800  # 2025-11-21T16:00:00Z
BAD_WRITER, BAD_NUMBER = "w0", 50
BAD_OWNER = "bad"

SOURCE = Source("spanner", "test", "shop", "", "counts")
CELLS = Source("bigtable", "test", table="counts")
_INT = ColumnType(Kind.INT64)
SCHEMA = TableSchema(
    (
        Column("owner", ColumnType(Kind.STRING), False, 1),
        Column("slot", _INT, False, 2),
        Column("a", _INT),
        Column("b", _INT),
        Column("big", ColumnType(Kind.STRING)),
        Column("note", ColumnType(Kind.STRING)),
        Column("at", ColumnType(Kind.TIMESTAMP)),
    )
)

Key = tuple[str, int]
Values = dict[str, Any]
COMPARED = ("a", "b", "big")
"""The columns that are compared with the source."""
_DELETE_ROW = (CellChange("DELETE_FAMILY", "f"),)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: the key, the old key if it changed, and the columns that it sends (None: DELETE)."""

    op: Op
    key: Key
    values: Values | None
    old_key: Key | None = None

    @property
    def keys(self) -> list[Key]:
        """The keys of the rows that it changes."""
        return [self.key] if self.old_key is None else [self.key, self.old_key]


def statement(writer: str, number: int) -> Statement:
    """Return a statement of a writer. `a`, `b` and `big` have the numbers of the statements that wrote them."""
    round_, step = divmod(number, ROUND)
    here, there = (writer, round_ % SLOTS), (writer, round_ % SLOTS + SLOTS)
    both, large = {"a": number, "b": number}, {"big": f"large {number}"}
    if step == 0:
        back = round_ >= SLOTS and _stays(round_ - SLOTS)
        return Statement(Op.UPDATE, here, both, there) if back else Statement(Op.CREATE, here, both | large)
    if step == 2:
        return Statement(Op.UPDATE, here, {"b": number} | large)
    if step == 3:
        return Statement(Op.UPDATE, there, {"a": number - 2, "b": number - 1}, here)
    if step < 6 or (_stays(round_) and round_ < 3):
        if step == 5 and not _stays(round_):
            return Statement(Op.DELETE, there, None)
        return Statement(Op.UPDATE, here if step < 3 else there, {"a" if step in (1, 4, 7) else "b": number})
    if _stays(round_):
        spare, other = (writer, 2 * SLOTS), (writer, (round_ - 3) % SLOTS + SLOTS)
        old, new = ((there, spare), (other, there), (spare, other))[step - 6]
        return Statement(Op.UPDATE, new, both, old)
    return (
        Statement(Op.CREATE, there, both | large),
        Statement(Op.UPDATE, here, both, there),
        Statement(Op.DELETE, here, None),
    )[step - 6]


def _stays(round_: int) -> bool:
    """Whether the row is still there after the round."""
    return round_ % 3 == 2


def events_of(row: dict[str, Any]) -> Iterator[ChangeEvent]:
    """Yield the event of a number, and after one number the event that targets refuse.

    No target has it: a text with a zero byte (PostgreSQL), of 50,000 characters (Kafka, Spanner, Pub/Sub with the
    limits of the tests), and a timestamp with nanoseconds (columns of files and tables).
    """
    writer, number = row["key"], row["n"]
    yield _event(statement(writer, number), number, writer)
    if (writer, number) == (BAD_WRITER, BAD_NUMBER):
        key = {"owner": BAD_OWNER, "slot": 0}
        after = {**key, "a": 1, "b": 1, "note": "\0" + "x" * 50_000, "at": 1}
        yield ChangeEvent(
            SOURCE, Op.CREATE, _time(number), key, None, after, _version(number, writer, 1), SCHEMA
        )


def _event(made: Statement, number: int, writer: str) -> ChangeEvent:
    key = dict(zip(("owner", "slot"), made.key, strict=True))
    before = None if made.old_key is None else dict(zip(("owner", "slot"), made.old_key, strict=True))
    after = None if made.values is None else {**key, **made.values}
    if made.old_key is not None:
        # A change of the key sends all columns but the large one, which it does not change.
        after = {**(after or {}), "note": None, "at": None}
    return ChangeEvent(SOURCE, made.op, _time(number), key, before, after, _version(number, writer), SCHEMA)


def whole(event: ChangeEvent) -> ChangeEvent:
    """Return the event with the large value if its key changed, for targets that take no such change without it."""
    if not event.before or not event.after:
        return event
    large = _followed(owner_key(event)[0]).large(number_at(event.timestamp))
    return msgspec.structs.replace(event, after={**event.after, "big": large})


def completed(event: ChangeEvent) -> ChangeEvent:
    """Return the event with all columns of its row, for targets that replace a whole row."""
    if not event.after or owner_key(event)[0] == BAD_OWNER:
        return event
    row = _followed(owner_key(event)[0]).row(number_at(event.timestamp))
    return msgspec.structs.replace(event, after={"note": None, "at": None, **row, **(event.key or {})})


class _Followed:
    """The rows of a writer, followed from its first statement on."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.rows: dict[Key, Values] = {}
        self._after: list[Values] = []

    def large(self, number: int) -> str | None:
        """Return the large value of the row of a statement, after the statement."""
        return self.row(number).get("big")

    def row(self, number: int) -> Values:
        """Return the row of a statement, after the statement."""
        self.follow(number + 1)
        return self._after[number]

    def follow(self, end: int) -> None:
        for number in range(len(self._after), end):
            made = statement(self._writer, number)
            row = self.rows.pop(made.old_key if made.old_key is not None else made.key, {})
            if made.values is not None:
                self.rows[made.key] = row = {**row, **made.values}
            self._after.append(row)


_followed = lru_cache(maxsize=None)(_Followed)


def event_seconds(number: int) -> int:
    """Return the commit time of a statement, in seconds since the epoch: one statement every two seconds."""
    return _START + 2 * number


def number_at(time: int) -> int:
    """Return the number of the statement of a time, in nanoseconds."""
    return (time // 1_000_000_000 - _START) // 2


def _time(number: int) -> int:
    return event_seconds(number) * 1_000_000_000


def _version(number: int, writer: str, index: int = 0) -> Version:
    return Version(_time(number) + WRITERS.index(writer), f"{writer}-{number}", "0000", index)


def owner_key(event: ChangeEvent) -> Key:
    """Return the key of an event as a tuple."""
    assert event.key is not None
    return event.key["owner"], event.key["slot"]


def cells_of(event: ChangeEvent) -> Iterator[ChangeEvent]:
    """Yield a change of a table as changes of rows of Bigtable, where a key cannot change."""
    assert event.key is not None
    index = event.version.index
    if event.key["owner"] == BAD_OWNER:
        yield _cells_event(event, event.key, (CellChange("ADD_TO_CELL", "f", b"a", 0, None, 1),), index)
        return
    if event.before:
        yield _cells_event(event, event.before, _DELETE_ROW, index)
    values = {name: value for name, value in (event.after or {}).items() if name in ("a", "b")}
    at = event.timestamp // 1000
    put = tuple(
        CellChange("SET_CELL", "f", name.encode(), at, None, b"%d" % value) for name, value in values.items()
    )
    yield _cells_event(event, event.key, put or _DELETE_ROW, index + 1)


def _cells_event(
    event: ChangeEvent, key: dict[str, Any], cells: tuple[CellChange, ...], index: int
) -> ChangeEvent:
    row = {"row_key": f"{key['owner']}/{key['slot']}".encode()}
    version = Version(event.timestamp, "", f"{index:020d}")
    return ChangeEvent(CELLS, Op.UPDATE, event.timestamp, row, None, row, version, NO_COLUMNS, cells=cells)


@dataclass(frozen=True, slots=True)
class Truth:
    """What targets must have when every writer has made the statements 0 to `end` - 1."""

    end: int

    def rows(self, columns: Sequence[str] = COMPARED) -> dict[Key, tuple[Any, ...]]:
        """The rows of the table: key to the values of columns."""
        found: dict[Key, Values] = {}
        for writer in WRITERS:
            followed = _Followed(writer)
            followed.follow(self.end)
            found |= followed.rows
        return {key: tuple(row[name] for name in columns) for key, row in found.items()}

    def log(self) -> dict[Key, list[int]]:
        """The numbers of the events of each key, in commit order. A change of the key is an event of the new key."""
        found: dict[Key, list[int]] = {}
        for writer in WRITERS:
            for number in range(self.end):
                found.setdefault(statement(writer, number).key, []).append(number)
        return found

    def feed(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the rows of the change feed, in any order: (owner, slot, time of the event in ns, change type)."""
        types = {Op.CREATE: "insert", Op.UPDATE: "update_postimage", Op.DELETE: "delete"}
        for writer in WRITERS:
            for number in range(self.end):
                made = statement(writer, number)
                yield (*made.key, _time(number), types[made.op])
                if made.old_key is not None:
                    yield (*made.old_key, _time(number), "update_preimage")

    @property
    def events(self) -> int:
        return self.end * len(WRITERS)
