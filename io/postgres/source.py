"""The change stream that is read, and the connection to it: two values with different lifetimes.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only the identity
of the stream. A `Connection` belongs to the running program. It may change between a stop and a resume (another host
after a failover, another password), so it is never in a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from penstock.io.change_streams.settings import Settings
from penstock.io.change_streams.source import WithIdentity
from penstock.tables import EVERY_TABLE, TableSelection

Protocol = Literal["stream", "pull"]
Streaming = Literal["off", "on", "parallel"]


@dataclass(frozen=True, slots=True)
class ChangeStream(WithIdentity):
    """The changes of a publication, read through a replication slot, from `start` to `end`: nanoseconds, inclusive.

    A slot knows its own position, so `start` only drops older changes; 0 drops none. `end` None means without end.
    `publication` may name several, separated by commas. `further`: (slot, publication) of the other slots of the
    database that are read too, each by its own connection.
    """

    database: str
    publication: str
    slot: str
    start: int
    end: int | None
    further: tuple[tuple[str, str], ...] = ()

    @property
    def publications(self) -> tuple[str, ...]:
        """The names of the publications of the first slot."""
        return tuple(self.publication.split(","))

    @property
    def shards(self) -> tuple[ChangeStream, ...]:
        """The change stream of each slot, the first one first."""
        first = replace(self, further=())
        return (first, *(replace(first, slot=slot, publication=names) for slot, names in self.further))

    @property
    def short_name(self) -> str:
        """The publications of all slots, for messages."""
        return "publication " + ",".join(shard.publication for shard in self.shards)

    def __str__(self) -> str:
        if self.further:
            return "; ".join(map(str, self.shards))
        return f"publication {self.publication} of database {self.database}, read through slot {self.slot}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a worker reaches the server. `dsn` may hold a password, so it is never shown.

    Args:
        reader_name: the application name of connections that use the slot. All workers of a program have the same
            one, and no other program has it.
        streaming, binary: the options of pgoutput with these names.
        preview: the read leaves no trace: the slot must exist, the server is never told which changes are in a
            checkpoint, and it keeps the snapshot of an initial snapshot only for seconds.
    """

    dsn: str = field(repr=False)
    protocol: Protocol = "stream"
    streaming: Streaming = "off"
    binary: bool = False
    create_slot: bool = False
    preview: bool = False
    reader_name: str = "penstock"


def plugin_options(publication: str, connection: Connection, *, two_phase: bool) -> dict[str, str]:
    """Return the options of pgoutput. `two_phase`: the slot was created with it.

    The version of the protocol is the lowest one that has what is asked for: 1 is in every supported server, 2 streams
    transactions that still run, 3 has two-phase commits (from PostgreSQL 15), 4 parallel streaming (from 16).
    """
    version = {"off": 1, "on": 2, "parallel": 4}[connection.streaming]
    options = {
        "proto_version": str(max(version, 3 if two_phase else 1)),
        "publication_names": publication,
        # Without it the server leaves out messages of applications (pg_logical_emit_message).
        "messages": "true",
    }
    if connection.streaming != "off":
        options["streaming"] = connection.streaming
    if connection.binary:
        options["binary"] = "true"
    return options


@dataclass(frozen=True, slots=True)
class PostgresSettings(Settings):
    """The common settings, the tables that are read, and snapshots."""

    selection: TableSelection = EVERY_TABLE
