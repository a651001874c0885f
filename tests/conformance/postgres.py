from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres import LogRecord, ReadFromPostgresChangeStream
from penstock.io.postgres import messages as m
from penstock.io.postgres.column_types import column_type
from penstock.io.postgres.log_decoder import LogDecoder
from penstock.io.postgres.log_steps import CaughtUp
from penstock.io.postgres.position import Position
from penstock.io.postgres.preflight import SLOT, check_slot
from penstock.io.postgres.read import ReadPostgresFn, ReadPostgresUnboundedFn
from penstock.io.postgres.record import Table, TableColumn
from penstock.io.postgres.schema_watch import Published
from penstock.io.postgres.source import ChangeStream
from penstock.io.postgres.transactions import TransactionReader
from tests.conformance.adapters import Adapter
from tests.unit.postgres.memory import answers
from tests.unit.postgres.pgoutput import encode

_EPOCH_US = 946_684_800_000_000
_TEXT = 25


class Service:
    """A log in memory, and the answers to the questions of `check`."""

    def __init__(self) -> None:
        self.backoff = Backoff("PostgreSQL", UnavailableError)
        self.transactions: list[tuple[int, list[bytes]]] = []
        self.failure = ""

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self.failure == "unavailable":
            raise UnreachableError("the connection was refused")
        return answers(query, publications=() if self.failure == "missing" else ("changes",), slot=self.slot)

    @property
    def slot(self) -> str:
        return "lost" if self.failure == "position lost" else "reserved"

    def close(self) -> None:
        pass

    def published(self) -> Published:
        return Published(0, ())

    @contextmanager
    def open(self, position: Position, watermark: int) -> Iterator[Log]:
        check_slot(ChangeStream("shop", "changes", "penstock", 0, None), self.rows(SLOT))
        yield Log(self, TransactionReader(describe, 1, watermark, position.previous_end))


class Log:
    """One connection: the whole log from its beginning, as a slot sends it after a crash."""

    def __init__(self, service: Service, reader: TransactionReader) -> None:
        self._service, self._next = service, 0
        self._decoder = LogDecoder(reader, min_rows=2)
        self._idle = threading.Event()

    def read(self, most: int) -> list[tuple[Any, int]]:
        transactions = self._service.transactions
        if self._next == len(transactions):
            self._idle.wait(0.01)
            return [(CaughtUp(transactions[-1][0] if transactions else 0, time.time_ns()), 0)]
        _, messages = transactions[self._next]
        self._next += 1
        if self._service.failure == "damaged":
            messages = [b"\xff"]
        return list(self._decoder.read_all([(1, data) for data in messages]))

    def acknowledge(self, lsn: int) -> None:
        pass

    def hurry(self) -> None:
        pass

    def server_time(self) -> int:
        return time.time_ns()


def describe(relation: m.Relation, types: object) -> Table:
    column = TableColumn("k", column_type(_TEXT), _TEXT, True, 1, False)
    return Table(relation.oid, relation.schema, relation.table, "DEFAULT", (column,))


class PostgresAdapter(Adapter):
    name = "postgres"
    namespace = "penstock.io.postgres"
    partitions = 1

    def __init__(self) -> None:
        super().__init__()
        self._service = service = Service()

        class InMemory:
            def connect(self, stream: Any) -> Any:
                return service

            def open_server(self, stream: Any) -> Any:
                return service

        class Bounded(InMemory, ReadPostgresFn):
            pass

        class Unbounded(InMemory, ReadPostgresUnboundedFn):
            pass

        class Read(ReadFromPostgresChangeStream):
            bounded_fn, unbounded_fn = Bounded, Unbounded

        self._read = Read

    def commit(self, timestamp: int, key: str) -> None:
        transactions = self._service.transactions
        end = 100 * (len(transactions) + 1)
        commit_us = timestamp // 1000 - _EPOCH_US
        relation = m.Relation(1, "public", "t", "d", (m.RelationColumn("k", _TEXT, -1, True),))
        messages = [
            m.Begin(end - 8, commit_us, 2),
            relation,
            m.Insert(1, (key,)),
            m.Commit(end - 8, end, commit_us),
        ]
        transactions.append((end, [encode(message) for message in messages]))

    def transform(self, **options: Any) -> ReadFromPostgresChangeStream:
        names = {"dsn": "dbname=shop", "publication": "changes", "slot": "penstock"}
        given = {**names, "start": self.start, "idle_stream_seconds": 0.1, **options}
        return self._read(**given)  # type: ignore[arg-type]

    def identity(self, record: LogRecord) -> tuple[int, str]:
        assert record.new is not None
        return record.event_timestamp, str(record.new[0])

    def fail(self, kind: str) -> None:
        self._service.failure = kind
