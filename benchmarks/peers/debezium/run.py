"""Debezium's engine as a peer: it makes JSON of the log and drops it. Needs Maven, which fetches it, and Java."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from backlogs import postgres
from measure import Cost

from tests.integration.postgres import debezium_engine

_PING = "ping"
"""Table and publication of empty runs: they end with one change."""


class Engine(Protocol):
    """Runs the engine once, until it has made `changes` records, or with `empty` one."""

    def __call__(
        self,
        waiting: postgres.Server,
        changes: int,
        *,
        empty: bool,
        measured: Callable[[Sequence[object], Path], Cost],
    ) -> Cost: ...


@contextmanager
def engine() -> Iterator[Engine]:
    """Compile the program around the engine; yield the function that runs it."""
    with tempfile.TemporaryDirectory(prefix="penstock-debezium-") as name:
        folder = Path(name)
        class_path = debezium_engine.compile_engine(folder)

        def run(
            waiting: postgres.Server,
            changes: int,
            *,
            empty: bool,
            measured: Callable[[Sequence[object], Path], Cost],
        ) -> Cost:
            slot = waiting.slot(empty=empty)
            settings = {
                **debezium_engine.connector_settings(
                    waiting.server, postgres.DATABASE, slot, _PING if empty else postgres.PUBLICATION
                ),
                "snapshot.mode": "no_data",
                "key.converter.schemas.enable": "false",
                "value.converter.schemas.enable": "false",
                "penstock.records": "1" if empty else str(changes),
            }
            if empty:
                _change_once(waiting)
            file = debezium_engine.write_properties(folder / f"{slot}.properties", settings)
            return measured(["java", "-Xmx900m", "-cp", class_path, "Engine", file], folder / "log")

        yield run


def _change_once(waiting: postgres.Server) -> None:
    session = waiting.session
    session.execute(f"create table if not exists {_PING} (id bigint primary key)")
    if not session.execute("select 1 from pg_publication where pubname = %s", (_PING,)).fetchone():
        session.execute(f"create publication {_PING} for table {_PING}")
    session.execute(f"insert into {_PING} select count(*) from {_PING}")
