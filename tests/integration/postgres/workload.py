"""Writers that change two tables in transactions, and the replay of records into tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psycopg

from penstock.event import ChangeEvent, Op
from penstock.io.postgres import LogRecord
from penstock.io.postgres.events import EventConverter
from tests.support.waiting import join

TABLES = ("accounts", "notes")
CREATE = (
    "create table accounts (id int primary key, balance bigint not null, note text)",
    "create table notes (id int, part text, body text, primary key (part, id))",
    "insert into accounts select i, 0, null from generate_series(0, 49) i",
)


class Writers:
    """Threads that write until `stop`; each transaction moves money between accounts, so the sum of balances is
    zero."""

    def __init__(self, dsn: str, seed: int, count: int = 4, pause: float = 0) -> None:
        self.transactions = 0
        self._pause = pause
        self._dsn, self._stopped = dsn, threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        join(*self._threads)

    def _run(self, draw: random.Random) -> None:
        while not self._stopped.is_set():
            # The server may be killed: then the transaction fails and the writer connects again.
            with suppress(psycopg.Error), psycopg.connect(self._dsn) as session:
                while not self._stopped.is_set():
                    with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                        self._transaction(session, draw)
                        self.transactions += 1
                        self._stopped.wait(self._pause)
                        continue
                    session.rollback()

    def _transaction(self, session: psycopg.Connection[Any], draw: random.Random) -> None:
        a, b = draw.sample(range(50), 2)
        amount = draw.randrange(1, 100)
        session.execute("update accounts set balance = balance - %s where id = %s", (amount, a))
        session.execute("update accounts set balance = balance + %s where id = %s", (amount, b))
        key = (draw.choice("xyz"), draw.randrange(20))
        match draw.randrange(5):
            case 0:
                session.execute(
                    "insert into notes values (%s, %s, repeat(md5(random()::text), 200)) on conflict "
                    "(part, id) do update "
                    "set body = excluded.body",
                    (key[1], key[0]),
                )
            case 1:
                session.execute("delete from notes where (part, id) = (%s, %s)", key)
            case 2:  # the key changes
                session.execute("update notes set id = id + 20 where (part, id) = (%s, %s)", key)
            case 3:  # the large value does not change and is not sent
                session.execute("update accounts set note = %s where id = %s", (str(amount), a))
            case 4:
                session.execute("savepoint s")
                session.execute("delete from notes")
                session.execute("rollback to s")
        session.rollback() if draw.random() < 0.1 else session.commit()


class Replay:
    """Tables that records are applied to, in their order."""

    def __init__(self, tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]]) -> None:
        self.tables = tables
        self._convert = EventConverter()

    def apply(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            for event in self._convert(record):
                self._apply(event)

    def _apply(self, event: ChangeEvent) -> None:
        rows = self.tables[event.source.table]
        assert event.key is not None
        key = tuple(event.key.values())
        if event.op is Op.DELETE:
            del rows[key]
            return
        assert event.after is not None
        old_key = key
        if event.before is not None:
            old_key = tuple(event.before[name] for name in event.key)
        if event.op is Op.UPDATE:
            before = rows.pop(old_key)
            rows[key] = {**before, **event.after}
        else:
            assert key not in rows, "an insert of a row that exists"
            rows[key] = dict(event.after)


def contents(session: psycopg.Connection[Any]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return the rows of both tables by key."""
    accounts = session.execute("select id, balance, note from accounts").fetchall()
    notes = session.execute("select id, part, body from notes").fetchall()
    return {
        "accounts": {(i,): {"id": i, "balance": balance, "note": note} for i, balance, note in accounts},
        "notes": {(part, i): {"id": i, "part": part, "body": body} for i, part, body in notes},
    }
