"""Debezium's engine as a peer: it makes JSON of the log and drops it, or writes it to Kafka.

Needs Maven, which fetches it, and Java.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from backlogs import postgres
from measure import Cost

from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres import debezium_engine

_PING = "ping"
"""Table and publication of empty runs: they end with one change."""


class Engine(Protocol):
    """Runs the engine once, until it has made `changes` records, or with `empty` one.

    `to`: what says where they are written; nothing drops them.
    """

    def __call__(
        self,
        waiting: postgres.Server,
        changes: int,
        *,
        empty: bool,
        measured: Callable[[Sequence[object], Path], Cost],
        to: Mapping[str, str] = MappingProxyType({}),
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
            to: Mapping[str, str] = MappingProxyType({}),
        ) -> Cost:
            slot = waiting.slot(empty=empty)
            publication = _PING if empty else postgres.PUBLICATION
            if empty:
                _change_once(waiting)
            connector = {
                **debezium_engine.connector_settings(waiting.server, postgres.DATABASE, slot, publication),
                **to,
            }
            return measured(
                command(folder, class_path, connector, "no_data", 1 if empty else changes), folder / "log"
            )

        yield run


def topic(brokers: str, name: str) -> Mapping[str, str]:
    """Return what writes the records to a topic of Kafka."""
    return {"penstock.kafka": brokers, "penstock.topic": name}


def command(
    folder: Path, class_path: str, connector: Mapping[str, str], mode: str, records: int
) -> Sequence[object]:
    """Return the command that runs the engine until it has made `records`. `mode`: ``snapshot.mode``."""
    settings = {
        **connector,
        "snapshot.mode": mode,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "penstock.records": str(records),
    }
    file = debezium_engine.write_properties(folder / f"{connector['slot.name']}.properties", settings)
    return ["java", "-Xmx900m", "-cp", class_path, "Engine", file]


@contextmanager
def snapshots(
    server: PostgresServer, rows: int, measured: Callable[[Sequence[object], Path], Cost]
) -> Iterator[Callable[[bool], Cost]]:
    """Yield the function that reads the table of `server` as an initial snapshot, or one row, and drops the records."""
    numbers = itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="penstock-debezium-") as name:
        folder = Path(name)
        class_path = debezium_engine.compile_engine(folder)

        def run(empty: bool) -> Cost:
            database = postgres.ONE_ROW if empty else postgres.DATABASE
            slot = f"debezium_{next(numbers)}"
            connector = debezium_engine.connector_settings(server, database, slot, postgres.PUBLICATION)
            records = 1 if empty else rows
            return measured(command(folder, class_path, connector, "initial", records), folder / "log")

        yield run


def _change_once(waiting: postgres.Server) -> None:
    session = waiting.session
    session.execute(f"create table if not exists {_PING} (id bigint primary key)")
    if not session.execute("select 1 from pg_publication where pubname = %s", (_PING,)).fetchone():
        session.execute(f"create publication {_PING} for table {_PING}")
    session.execute(f"insert into {_PING} select count(*) from {_PING}")
