"""The configuration of the SQL sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from penstock.event.model import ChangeEvent, Source
from penstock.event.schema_changes import Policy
from penstock.io.sql.statements import TableName
from penstock.io.staging.preview import Written

if TYPE_CHECKING:
    import psycopg

    from penstock.io.sql.sender import SqlSender

Mode = Literal["current", "log"]

_CONNECT_SECONDS = 10
# The transaction of a batch holds the lock of its ledger entry. A driver that was paused in the middle of it keeps its
# connection, because its kernel still answers. Without a limit its successor would wait for as long as the pause lasts.
# No limit of the server ends a COPY that waits for its client (measured with PostgreSQL 15 and 18). So the successor's
# wait for the lock is limited too, and then it ends the other session itself (`SqlSender._end_paused`).
_LIMITS = {
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "60s",
    "statement_timeout": "600s",
}
# A server that vanished without a word is noticed after half a minute, not after the two hours of the system.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


@dataclass(frozen=True, slots=True)
class SqlTarget:
    """See `WriteToSql`, whose arguments these are. The dsn may have a password, so it is not shown."""

    dsn: str = field(repr=False)
    mode: Mode = "current"
    schema: str = "public"
    table: str = "{table}"
    schema_changes: Policy = "evolve"
    create_tables: bool = True
    tombstone_seconds: float = 7 * 86_400

    @property
    def name(self) -> str:
        """``PostgreSQL at host:port/database``."""
        from psycopg.conninfo import conninfo_to_dict

        known = conninfo_to_dict(self.dsn)
        port = f":{known['port']}" if "port" in known else ""
        return f"PostgreSQL at {known.get('host', 'localhost')}{port}/{known.get('dbname', '')}"

    def check(self) -> None:
        """Connect, and create the ledger if it is missing."""
        self.open(skip_refused=False).close()

    def open(self, *, skip_refused: bool) -> SqlSender:
        """Return a new connection; see `penstock.io.staging.delivery.Target`."""
        from penstock.io.sql.sender import SqlSender

        return SqlSender(self, skip_refused)

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of an event; see `penstock.io.staging.preview`."""
        from penstock.io.sql.preview import rows_of_event

        return rows_of_event(event, self)

    def connect(self) -> psycopg.Connection[Any]:
        """Return a session in autocommit mode.

        Raises:
            TargetUnavailableError, SqlTargetError: there is none; the message says why.
        """
        import psycopg

        from penstock.io.sql.errors import classify_error

        try:
            session = psycopg.connect(
                self.dsn,
                autocommit=True,
                fallback_application_name="penstock",
                connect_timeout=_CONNECT_SECONDS,
                **_KEEPALIVE,  # type: ignore[arg-type]
            )
            # A database may have "off" as its default. Then a crash of the server loses commits that it acknowledged,
            # the ledger with them, after the checkpoint has moved on.
            session.execute(
                "select set_config('synchronous_commit', 'on', false) "
                "where current_setting('synchronous_commit') = 'off'"
            )
            for name, limit in _LIMITS.items():
                # 0 is PostgreSQL's default. A limit that the user or the server has set stays.
                session.execute(
                    "select set_config(%s, %s, false) where current_setting(%s) = '0'", (name, limit, name)
                )
            return session
        except psycopg.Error as error:
            raise classify_error(error.sqlstate or "", str(error), self.name) from error

    def table_of(self, event: ChangeEvent) -> TableName:
        """Return the table to which an event is written."""
        return self.table_of_source(event.source)

    def table_of_source(self, source: Source) -> TableName:
        """Return the table that the events of a source table go to.

        A message that an application wrote into the log of its database belongs to no table.
        """
        if not source.table:
            return TableName(self.schema, "penstock_messages")
        table = self.table.format(table=source.table, schema=source.schema, database=source.database)
        return TableName(self.schema, table)
