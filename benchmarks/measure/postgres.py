"""Transactions of PostgreSQL that are committed at a rate, beside what is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg


@contextmanager
def committing(
    dsn: str, statement: str, parameters: Iterable[tuple[Any, ...]], rate: float
) -> Iterator[None]:
    """Commit transactions of one statement at a rate, in a thread, each with the next `parameters`.

    If the server is slower for a while, up to a second of transactions is made up for.
    """
    over = threading.Event()

    def commit() -> None:
        with psycopg.connect(dsn, autocommit=True) as session:
            due = time.monotonic()
            for each in parameters:
                session.execute(statement, each)
                due = max(due + 1 / rate, time.monotonic() - 1)
                if over.wait(max(0.0, due - time.monotonic())):
                    return

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
