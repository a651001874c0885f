"""A reader of `Database` that uses the engine as a source does, and checks each row that comes out."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, ChunkRow, SnapshotEngine
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from tests.property.change_streams.database import UNCHANGED, Change, Database

TABLE = "public.t"


class Read(NamedTuple):
    """A row of a chunk. `sees`: the transactions that the chunk sees."""

    key: int
    row: tuple[Any, Any]
    sees: frozenset[int]


class Checkpoint(NamedTuple):
    position: int
    progress: str
    recent: tuple[int, ...]
    outputs: int


class Reader:
    """Reads the log and merges chunks into it; `output` has changes and `Read`s."""

    def __init__(self, database: Database, *, chunk_rows: int, surrogate_key: bool = False) -> None:
        self.database, self.chunk_rows = database, chunk_rows
        self.output: list[Change | Read] = []
        self.notifications: list[Any] = []
        self.position = 0
        self.crashes = 0
        key = ("a",) if surrogate_key else ()
        progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", (TABLE,), surrogate_key=key))
        self.engine = SnapshotEngine(progress, chunk_rows=chunk_rows)
        self.requested: list[ChunkRequest] = []
        self.answered: list[Chunk] = []
        self.checkpoint = self._checkpoint()

    def _checkpoint(self) -> Checkpoint:
        progress = json.dumps(self.engine.progress.document())
        return Checkpoint(self.position, progress, tuple(self.engine.recent), len(self.output))

    def commit(self) -> None:
        self.checkpoint = self._checkpoint()

    def crash(self) -> None:
        """Continue from the last checkpoint; chunks and what was emitted since are lost."""
        self.crashes += 1
        self.position, progress, recent, outputs = self.checkpoint
        del self.output[outputs:]
        stored = SnapshotProgress.from_document(json.loads(progress))
        self.engine = SnapshotEngine(stored, recent=recent, chunk_rows=self.chunk_rows)
        self.requested, self.answered = [], []

    def step(self, draw: random.Random) -> None:
        """Do one of the things that may happen next."""
        match draw.choice(("log", "log", "request", "execute", "arrive", "emit", "commit", "resolve")):
            case "log":
                self.read_change()
            case "request":
                self.requested += self.engine.requests()
            case "execute":
                self.execute()
            case "arrive":
                if self.answered:
                    self.engine.arrived(self.answered.pop(0))
            case "emit":
                self.emit()
            case "commit":
                self.commit()
            case "resolve":
                self.resolve()

    def resolve(self) -> None:
        if self.engine.progress.unresolved is not None:
            self.notifications += self.engine.resolve("1", [TABLE], {})

    def read_change(self) -> None:
        if self.position == len(self.database.log):
            return
        change = self.database.log[self.position]
        self.engine.emitted(change.transaction)
        if change.key is None:
            self.engine.truncated(change.transaction, TABLE)
            first = []
        else:
            keys = [change.key] if change.old_key is None else [change.old_key, change.key]
            first = self.engine.change(
                change.transaction,
                TABLE,
                keys,
                whole=change.whole,
                name=str(change.key),
                moved=change.old_key is not None,
            )
        self.output += [*first, change]
        self.position += 1

    def execute(self) -> None:
        """Read one chunk that was requested, as the database is now."""
        database = self.database
        if not self.requested or database.is_locked:
            return
        request = self.requested[0]
        if not set(request.after) <= database.visible:
            return  # the source waits until it sees them
        self.requested.pop(0)
        sees = frozenset(database.visible)
        order = (lambda key: (database.rows[key][0], key)) if request.surrogate_key else (lambda key: (key,))
        keys = sorted(database.rows, key=order)
        if request.keys:
            keys = [key for key in keys if str(key) in request.keys]
            found = keys
        else:
            if request.cursor:
                keys = [key for key in keys if order(key) > tuple(json.loads(request.cursor))]
            found = keys[: request.size]
        rows = [
            ChunkRow(key, json.dumps(order(key)), str(key), Read(key, database.rows[key], sees))
            for key in found
        ]
        is_last = not request.keys and len(keys) <= request.size
        self.answered.append(Chunk(request, rows, sees.__contains__, len(database.log), is_last))

    def emit(self) -> None:
        for emission in self.engine.reached(self.position):
            self.output += emission.rows
            self.notifications += emission.notifications


def replayed(output: list[Change | Read]) -> dict[int, tuple[Any, Any]]:
    """Apply the output in its order, as a consumer that knows nothing of snapshots."""
    rows: dict[int, tuple[Any, Any]] = {}
    for item in output:
        if isinstance(item, Read):
            rows[item.key] = item.row
        elif item.key is None:
            rows = {}
        elif item.row is None:
            rows.pop(item.key, None)
        else:
            before = rows.pop(item.key if item.old_key is None else item.old_key, (None, "missing"))
            rows[item.key] = (item.row[0], before[1] if item.row[1] is UNCHANGED else item.row[1])
    return rows


def assert_rows_follow_only_what_they_see(output: list[Change | Read]) -> None:
    """No row follows a change of its key that it does not see, or precedes one that it sees."""
    for place, item in enumerate(output):
        if not isinstance(item, Read):
            continue
        for other, change in enumerate(output):
            if isinstance(change, Read) or item.key not in (change.key, change.old_key):
                continue
            before = other < place
            assert before == (change.transaction in item.sees), "a row and a change of it are out of order"
