"""A complete sink, as an example: a database in memory as the target. It passes the conformance tests.

    DATABASES["shop"] = Database()
    delivered = events | WriteToMemory(database="shop")

The target has a row for each change, in the order of the changes of its key. A sink for a real system is a folder, with
modules for the errors of its client and the form of its values too; see docs/new-sink.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from penstock.errors import SetupError
from penstock.event import ChangeEvent
from penstock.io.staging.connector import Connector
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    LedgerEntry,
    Refusal,
    RefusalError,
    Sent,
    is_delivered,
)
from penstock.io.staging.options import SendOptions
from penstock.io.staging.preview import Written
from penstock.io.staging.send_after_commit import SendAfterCommit
from penstock.options import Accepts, options

TRANSACTION_ROWS = 1000
"""Rows of one transaction. A larger batch needs several."""


class Row(NamedTuple):
    """A row of the target: the change of one row of the source."""

    table: str
    key: dict[str, Any] | None
    op: str
    after: dict[str, Any] | None
    timestamp: int


class Progress(NamedTuple):
    """The entry of a writer in the ledger: its last delivery, how many rows of it are written, and its result."""

    position: LedgerEntry | None = None
    done: int = 0
    sent: Sent = Sent()


@dataclass
class Database:
    """The service. Each transaction is a request; a test sets `request` to lose some of them."""

    rows: list[Row] = field(default_factory=list)
    ledger: dict[str, Progress] = field(default_factory=dict)
    request: Callable[[Callable[[], Progress]], Progress] = lambda transaction: transaction()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, transaction: Callable[[], Progress]) -> Progress:
        """Run a transaction: no other one runs at the same time."""

        def locked() -> Progress:
            with self._lock:
                return transaction()

        return self.request(locked)


DATABASES: dict[str, Database] = {}


@options
class MemorySinkOptions(SendOptions):
    """The options of `WriteToMemory`."""

    database: Annotated[str, Accepts(example="shop")]
    """Name of the database. It must exist."""


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """The values of the sink, which the pipeline pickles."""

    database: str

    @property
    def name(self) -> str:
        return f"the database {self.database} in memory"


def row_of(event: ChangeEvent) -> Row:
    """Return the row of an event.

    Raises:
        ValueError: the target cannot hold a value.
    """
    if names := [name for name, value in (event.after or {}).items() if "\0" in str(value)]:
        raise ValueError(f"column {names[0]} has a zero byte, which the target cannot store")
    return Row(event.source.table, event.key, event.op.value, event.after, event.timestamp)


def written_rows(event: ChangeEvent, target: MemoryTarget) -> list[Written]:
    """Return what the sink writes for an event; see `penstock.io.staging.preview`."""
    return [row_of(event)._asdict()]


class MemorySender:
    """A connection, in one worker process; see `penstock.io.staging.delivery.Sender`."""

    def __init__(self, target: MemoryTarget, skip_refused: bool) -> None:
        self._skip_refused = skip_refused
        if target.database not in DATABASES:
            raise SetupError(f"{target.name} does not exist: make it before the pipeline starts")
        self._database = DATABASES[target.database]

    def check(self) -> None:
        """The constructor has looked for the database, and it has its ledger."""

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        rows, refused = list[Row](), list[Refusal]()
        for index, event in enumerate(events):
            try:
                rows.append(row_of(event))
            except ValueError as error:
                refused.append(Refusal(index, str(error)))
        if refused and not self._skip_refused:
            raise RefusalError(refused[0])
        database = self._database

        def transaction() -> Progress:
            # The ledger is read in the transaction that writes the rows: another driver may have sent them since.
            progress = database.ledger.get(delivery.writer, Progress())
            if progress.position != delivery.position:
                if is_delivered(progress.position, delivery):
                    return progress
                progress = Progress(delivery.position, 0, Sent(tuple(refused)))
            end = min(progress.done + TRANSACTION_ROWS, len(rows))
            database.rows += rows[progress.done : end]
            database.ledger[delivery.writer] = progress._replace(done=end)
            return database.ledger[delivery.writer]

        progress = database.run(transaction)
        while progress.position == delivery.position and progress.done < len(rows):
            progress = database.run(transaction)
        return progress.sent

    def close(self) -> None:
        """Nothing is open."""


class WriteToMemory(MemorySinkOptions, SendAfterCommit):
    """Append change events to a database in memory, each once.

    Order: by key. What repeats: nothing. Watermark: each event holds it until its row is written. State: for each shard
    the events since the last commit, or of the last `roll_seconds`.
    """

    def __post_init__(self) -> None:
        names = {"sender_name": f"{__name__}:MemorySender", "preview_name": f"{__name__}:written_rows"}
        target = MemoryTarget(self.database)
        SendAfterCommit.__init__(self, Connector(target, **names, extra="toy"), options=self)
