"""Datasets by the naming rules of OpenLineage, and how transforms tell which ones they read and write. Pure.

    Dataset("postgres://db.example.com:5432", "shop.public.orders", ("id", "total"))

A name never contains a password: it is made of hosts, ports and names. The rules are on OpenLineage's page "Naming
Conventions"; `docs/openlineage.md` says which names Penstock gives where that page has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.event.model import Source

__all__ = [
    "Dataset",
    "ReadTable",
    "ReadsTables",
    "WritesDatasets",
    "host_and_port",
    "names_of",
    "postgres_dataset",
]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table, a topic or a folder. `columns` are the names of its columns; () if they are not known."""

    namespace: str
    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table that a source reads: as its events name it, and as a dataset."""

    source: Source
    dataset: Dataset


@runtime_checkable
class ReadsTables(Protocol):
    """A transform that tells which tables it reads."""

    def tables_read(self) -> Sequence[ReadTable]:
        """Return the tables as they are now. It may ask the service, and raise what the service answers."""


@runtime_checkable
class WritesDatasets(Protocol):
    """A transform, or the target of one, that tells which datasets it writes."""

    def datasets_written(self, sources: Sequence[Source]) -> Sequence[Dataset]:
        """Return the datasets for events of these tables; () if they are not known. It asks no service."""


def names_of(pattern: str, sources: Iterable[Source]) -> list[str]:
    """Return the names that a pattern with ``{table}``, ``{schema}`` and ``{database}`` gives for tables, each once.

    A pattern without a placeholder is the one name, also if no table is known.
    """
    if "{" not in pattern:
        return [pattern]
    names = (pattern.format(table=each.table, schema=each.schema, database=each.database) for each in sources)
    return list(dict.fromkeys(names))


def host_and_port(address: str, default_port: int) -> str:
    """Return ``host:port`` of the first address in a list, without a scheme, a user and a password."""
    first = address.rpartition("://")[2].split(",")[0].split("/")[0].rpartition("@")[2]
    host, colon, port = first.rpartition(":")
    # "]" ends an IPv6 address, which has colons of its own.
    if colon and not port.endswith("]"):
        return f"{host}:{port}"
    return f"{first}:{default_port}"


def postgres_dataset(
    dsn: str, schema: str, table: str, columns: tuple[str, ...] = (), *, database: str = ""
) -> Dataset:
    """Return a table of the server in a connection string of libpq. `database`: default the one of `dsn`."""
    from psycopg.conninfo import conninfo_to_dict  # only pipelines with PostgreSQL have psycopg

    known = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    # As libpq, which a pipeline connects with; a list of hosts means the first one, a socket this machine.
    host = (known.get("host") or known.get("hostaddr") or os.environ.get("PGHOST", "")).split(",")[0]
    port = (known.get("port") or os.environ.get("PGPORT", "")).split(",")[0] or "5432"
    user = known.get("user") or os.environ.get("PGUSER", "")
    database = database or known.get("dbname") or os.environ.get("PGDATABASE") or user
    server = "localhost" if not host or host.startswith(("/", "@")) else host
    return Dataset(f"postgres://{server}:{port}", f"{database}.{schema}.{table}", columns)
