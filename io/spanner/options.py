"""The options of Spanner's sources, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from penstock.io.change_streams.options import (
    GoogleOptions,
    LimitOptions,
    SignalTableOptions,
    Snapshot,
    StreamOptions,
)
from penstock.options import Accepts, options
from penstock.timestamps import Timelike

Tables = str | Sequence[str] | Mapping[str, Sequence[str]]


@options
class SpannerOptions(GoogleOptions):
    """A database, and how a worker reaches it."""

    database: Annotated[
        str,
        Accepts(
            pattern="[a-z][a-z0-9_-]{0,28}[a-z0-9]",
            words="a database id (2 to 30 lowercase letters, digits, hyphens and underscores, a letter first)",
            example="orders-db",
        ),
    ]
    """Database of the instance."""
    database_role: Annotated[str | None, Accepts(example="change_reader")] = None
    """Database role with the rights to read, for fine-grained access control."""
    rpc_priority: Annotated[str | None, Accepts(choices=("LOW", "MEDIUM", "HIGH"), example="LOW")] = None
    """Priority of the queries. Default: the default of Spanner, HIGH."""
    include_replicas: Annotated[Sequence[str], Accepts(example="us-east1:READ_ONLY")] = ()
    """Replica that answers queries, as location, location:type or :type; repeat for more, in the order of
    preference."""
    exclude_replicas: Annotated[Sequence[str], Accepts(example=":READ_WRITE")] = ()
    """Replica that answers no query, as location, location:type or :type; repeat for more."""
    auto_failover: bool = True
    """Whether other replicas answer while none of include_replicas can."""
    api_endpoint: Annotated[str | None, Accepts(example="spanner.example.com:443")] = None
    """Regional, private or self-managed endpoint to connect to, as host:port."""
    plain_text: bool = False
    """Whether to connect to api_endpoint without TLS and credentials."""
    root_certificates: Annotated[str | None, Accepts(example="/etc/spanner/ca.pem")] = None
    """PEM file with the certificates that sign the certificate of a self-managed api_endpoint. Each worker reads it.
    With certificates, no application default credentials are used."""
    client_certificate: Annotated[str | None, Accepts(example="/etc/spanner/client.pem")] = None
    """PEM file with the client certificate for mutual TLS. Each worker reads it."""
    client_key: Annotated[str | None, Accepts(example="/etc/spanner/client.key")] = None
    """PEM file with the key of client_certificate. Each worker reads it."""


@options
class SpannerStreamOptions(SpannerOptions, SignalTableOptions, StreamOptions):
    """The options of `ReadFromSpannerChangeStream`."""

    change_stream: Annotated[
        str,
        Accepts(
            pattern="[A-Za-z][A-Za-z0-9_]{0,127}",
            words="the name of a change stream (letters, digits and underscores, a letter first)",
            example="OrdersStream",
        ),
    ]
    """Change stream to read, without READ_."""
    snapshot: Annotated[Snapshot, Accepts(example="initial")] = "never"
    """With initial, the first start reads every row of the watched tables (mod_type READ), as of start or as of now,
    and then every later change. With when_needed, also when the change stream no longer has the changes after the
    checkpoint; rows that were deleted in that time cannot be known. With never, changes only."""
    snapshot_data_boost: bool = False
    """Whether the snapshot is read with Spanner Data Boost, not with the compute capacity of the instance."""
    signal_table: Annotated[str | None, Accepts(example="Signals")] = None
    """Table with the STRING columns id, type and data, in which applications request incremental snapshots in
    Debezium's layout. It is polled."""
    heartbeat_seconds: Annotated[float, Accepts(minimum=1, maximum=300)] = 1.0
    """Interval, in seconds, at which Spanner sends a heartbeat for a partition without changes."""
    poll_seconds: Annotated[float, Accepts(minimum=0.01, maximum=60)] = 0.2
    """Length, in seconds, of the time window of one query to Spanner. A shorter window delivers sooner where the
    service sends rows only at the end of a query, and needs more queries."""
    max_concurrent_partitions: int = 32
    """Number of partitions that one worker process reads at once; the others take turns."""
    tables: Sequence[str] = ()
    """Table whose changes are written, a name or a glob such as ``sales.*``; repeat for more. A name without a schema
    is the table in every schema. Default: all."""
    without_tables: Annotated[Sequence[str], Accepts(example="Audit*")] = ()
    """Table that is not read, a name or a glob; repeat for more. It wins over tables. A name without a schema is the
    table in every schema."""
    mod_types: Annotated[
        Sequence[str], Accepts(choices=("INSERT", "UPDATE", "DELETE"), example="INSERT")
    ] = ()
    """Kind of change that is read; repeat for more. Without any, all kinds are read."""
    exclude_transaction_tags: Annotated[Sequence[str], Accepts(example="backfill")] = ()
    """Transaction tag whose changes are not read; repeat for more."""
    dialect: Annotated[
        str | None, Accepts(choices=("GOOGLE_STANDARD_SQL", "POSTGRESQL"), example="POSTGRESQL")
    ] = None
    """Dialect of the database. Default: Spanner is asked."""


@options
class SpannerTableOptions(SpannerOptions, LimitOptions):
    """The options of `ReadFromSpannerTable`."""

    tables: Tables
    """The name of a table, several names, or a mapping from names to the columns to read. A table in a named schema is
    ``schema.table``. Names are written as in CREATE TABLE, without quotation marks. Key columns are always read."""
    at: Timelike | None = None
    """The timestamp. None means now, by the clock of the service. It must be within the database's
    version_retention_period (1 hour unless it was raised) until all rows are read."""
    max_ranges: int = 256
    """About how many key ranges a table is divided in, to be read in parallel; 1 to 10,000."""
    data_boost: bool = False
    """Whether to read with Data Boost, not with the compute capacity of the instance. Then a bundle ends only after a
    whole key range, because Data Boost sends rows in no particular order."""
