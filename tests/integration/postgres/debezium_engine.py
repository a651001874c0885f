"""Debezium's own PostgreSQL connector, run by its embedded engine, and the history that golden records are made of.

Maven fetches the engine; see debezium/pom.xml for its version.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from penstock.io.postgres.catalog import RELATION, TYPES
from penstock.io.postgres.text_values import SESSION_SETTINGS
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.debezium_history import CHANGES, SETUP
from tests.support.waiting import wait_until

VERSION = "3.6.3.Final"
PROJECT = Path(__file__).parent / "debezium"

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "default": {},
    "modes": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "hex",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
    },
    "transactions": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "connect",
        "binary.handling.mode": "base64",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
    },
    "microseconds": {
        "time.precision.mode": "microseconds",
        "unavailable.value.placeholder": "not sent",
        "skipped.operations": "u,t",
    },
    "time_microseconds": {
        "time.precision.mode": "adaptive_time_microseconds",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "hex",
        "provide.transaction.metadata": "true",
    },
    "nanoseconds": {
        "time.precision.mode": "nanoseconds",
        "binary.handling.mode": "base64-url-safe",
        "tombstones.on.delete": "false",
        "skipped.operations": "none",
    },
}
"""Name of the connector and of its topics, and the settings that are not its defaults."""


@contextmanager
def running_engines(server: PostgresServer, database: str) -> Iterator[dict[str, Path]]:
    """Run one connector for each configuration. Yield the files that they write: a record in each line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-debezium-"))
    try:
        class_path = compile_engine(folder)
        outputs = {name: folder / f"{name}.jsonl" for name in CONFIGURATIONS}
        files = [_properties(folder, server, database, name) for name in CONFIGURATIONS]
        with (folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                ["java", "-Xmx900m", "-cp", class_path, "Engine", *files],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield outputs
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
    finally:
        shutil.rmtree(folder)


def compile_engine(folder: Path) -> str:
    """Compile the engine's program in a folder and return the class path."""
    project = shutil.copytree(PROJECT, folder / "project")
    path = folder / "class-path"
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={path}"]
    subprocess.run(["mvn", "-q", "-B", *goals], cwd=project, check=True, timeout=600)
    return f"{project / 'target' / 'classes'}:{path.read_text()}"


def _properties(folder: Path, server: PostgresServer, database: str, name: str) -> str:
    settings = {
        **connector_settings(server, database, name, "changes"),
        "snapshot.mode": "initial",
        # The connector stops at records that it cannot make. The history has some.
        "event.processing.failure.handling.mode": "skip",
        "penstock.output": str(folder / f"{name}.jsonl"),
        **CONFIGURATIONS[name],
    }
    return write_properties(folder / f"{name}.properties", settings)


def connector_settings(server: PostgresServer, database: str, name: str, publication: str) -> dict[str, str]:
    """Return what every connector needs. `name` is that of its slot, and the first part of its topics."""
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": database,
        "topic.prefix": name,
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "header.converter.schemas.enable": "true",
        "poll.interval.ms": "20",
    }


def write_properties(path: Path, settings: Mapping[str, str]) -> str:
    """Write a file of Java properties; return its path."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


def record_history(server: PostgresServer) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Run the history under all connectors.

    Return the records of each one, and the same changes as `pgoutput` sends them with the answers of the catalogue.
    """
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute("create database history")
    with psycopg.connect(server.dsn("history"), autocommit=True) as session:
        for statement in SETUP:
            session.execute(statement)
        session.execute("select pg_replication_origin_create('other')")
        session.execute("create publication changes for all tables")
        for slot in ("log", *CONFIGURATIONS):
            session.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        with running_engines(server, "history") as outputs:
            wait_until(lambda: _streaming(session), "a connector does not start")
            for change in CHANGES:
                _run(session, change)
            wait_until(
                lambda: all(f'{name}.public.done"' in path.read_text() for name, path in outputs.items()),
                "a connector does not reach the end of the history",
            )
            records = {
                name: [json.loads(line) for line in path.read_text().splitlines()]
                for name, path in outputs.items()
            }
        return records, _log(session)


def _streaming(session: psycopg.Connection[Any]) -> bool:
    row = session.execute("select count(*) from pg_replication_slots where active").fetchone()
    return row is not None and row[0] == len(CONFIGURATIONS)


def _run(session: psycopg.Connection[Any], change: str) -> None:
    kind, _, statement = change.partition(": ")
    match kind:
        case "prepare":
            session.execute(f"begin; {statement}; prepare transaction 'prepared'")
            session.execute("commit prepared 'prepared'")
        case "origin":
            session.execute("select pg_replication_origin_session_setup('other')")
            position = "select pg_replication_origin_xact_setup('0/ABC', '2020-01-01 00:00:00+00')"
            session.execute(f"begin; {position}; {statement}; commit")
            session.execute("select pg_replication_origin_session_reset()")
        case "copy":
            with session.cursor().copy(f"copy {statement} from stdin") as copy:
                copy.write("20\ta\n21\tb\n")
        case _:
            # Several statements are one transaction.
            session.execute(change)


def _log(session: psycopg.Connection[Any]) -> dict[str, Any]:
    for name, value in SESSION_SETTINGS.items():
        session.execute(f"set {name} = '{value}'")
    messages = session.execute(
        "select (lsn - '0/0')::int8, data from pg_logical_slot_peek_binary_changes('log', null, null, "
        "'proto_version', '1', 'publication_names', 'changes', 'messages', 'true')"
    ).fetchall()
    tables = session.execute(
        "select oid::int8 from pg_class where relkind in ('r', 'p') and relnamespace::regnamespace::text "
        "not in ('pg_catalog', 'information_schema')"
    ).fetchall()
    return {
        "messages": [(lsn, base64.b64encode(data).decode()) for lsn, data in messages],
        "types": session.execute(TYPES).fetchall(),
        "tables": {oid: session.execute(RELATION, (oid,)).fetchall() for (oid,) in tables},
    }
