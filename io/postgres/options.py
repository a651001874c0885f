"""The options of PostgreSQL's source, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated

from penstock.io.change_streams.options import SignalTableOptions, StreamOptions
from penstock.options import Accepts, options
from penstock.timestamps import Timelike


@options
class PostgresStreamOptions(SignalTableOptions, StreamOptions):
    """The options of `ReadFromPostgresChangeStream`."""

    dsn: Annotated[str, Accepts(example="${env:SHOP_DSN}")]
    """Connection string of libpq, also a URI. The role needs REPLICATION and SELECT on the published tables. It is
    never shown. PGPASSWORD and ~/.pgpass of the workers are used too."""
    publication: Annotated[str, Accepts(example="shop_changes")]
    """Publication to read, or several separated by commas."""
    slot: Annotated[
        str,
        Accepts(
            pattern="[a-z0-9_]{1,63}",
            words="the name of a slot (lowercase letters, digits and underscores)",
            example="penstock",
        ),
    ]
    """Logical replication slot with the plugin pgoutput. No other reader may use it."""
    further_slots: Annotated[Mapping[str, str], Accepts(example="penstock_orders=shop_orders")] = field(
        default_factory=dict
    )
    """More slots of the same database, each with its publication. They are read in parallel, each as one partition.
    Changes of two slots have no common order. A table belongs to one slot, unless row filters divide its rows."""
    create_slot: bool = False
    """Whether to create the slot if it does not exist, when a pipeline starts without a checkpoint. The pipeline then
    reads from that moment on."""
    start: Timelike | None = None
    """Changes that were committed before this time are dropped. Default: none. A slot has its own position."""
    tables: Annotated[Sequence[str], Accepts(example="public.orders")] = ()
    """Table to read, a name or a glob such as public.orders or sales.*; repeat for more. A name without a schema is the
    table in every schema. Default: all tables of the publication."""
    without_tables: Annotated[Sequence[str], Accepts(example="public.audit_*")] = ()
    """Table that is not read, a name or a glob; repeat for more. It wins over tables. A name without a schema is the
    table in every schema."""
    protocol: Annotated[str, Accepts(choices=("stream", "pull"))] = "stream"
    """How the log is read: stream holds a replication connection and has the lower latency, pull uses ordinary queries,
    for connection poolers."""
    streaming: Annotated[str, Accepts(choices=("off", "on", "parallel"))] = "off"
    """Whether the server sends large transactions while they still run. The worker keeps them in a temporary file until
    they are committed. Parallel uses version 4 of the protocol (PostgreSQL 16)."""
    binary: bool = False
    """Whether the server sends values in binary form; bytea columns then need half of the network traffic."""
    heartbeat_seconds: Annotated[float, Accepts(minimum=0.05, maximum=60)] = 1.0
    """Interval, in seconds, at which an idle reader asks for the end of the log."""
    snapshot: Annotated[str, Accepts(choices=("never", "initial", "when_needed"), example="initial")] = (
        "never"
    )
    """With initial, the first start reads all rows of the tables first. With when_needed, also when the server no
    longer has the changes after the checkpoint. With never, changes only."""
    new_columns: Annotated[str, Accepts(choices=("stream", "snapshot"), example="snapshot")] = "stream"
    """What is read of a table that gets a column whose values the log does not have in older rows: a new one with a
    default, a renamed one, or one that is published later. With stream, its changes from then on. With snapshot, also
    the rows of the table, once, as an incremental snapshot."""
    signal_table: Annotated[str | None, Accepts(example="public.penstock_signals")] = None
    """Table with the text columns id, type and data, in which applications request snapshots in Debezium's layout. If
    the publication has the table, its signals are read from the log, otherwise it is polled."""
