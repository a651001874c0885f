"""The changefeed that is read, and the connection to it: two values with different lifetimes. Pure.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only the identity
of the stream. A `Connection` belongs to the running program. It may change between a stop and a resume, so it is never
in a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import UsageError
from penstock.io.change_streams import settings
from penstock.io.change_streams.connection import check_address
from penstock.io.change_streams.incremental.options import WHEN_NEEDED, checked_snapshot
from penstock.io.change_streams.source import WithIdentity
from penstock.io.ydb.options import YdbChangefeedOptions


@dataclass(frozen=True, slots=True)
class ChangeStream(WithIdentity):
    """A changefeed, read from `start` to `end`: commit times in nanoseconds, both inclusive.

    `start` 0: everything that the topic has. `end` None: without end.
    """

    database: str
    table: str
    changefeed: str
    start: int
    end: int | None

    @property
    def table_path(self) -> str:
        """The absolute path of the table."""
        return f"{self.database}/{self.table}"

    @property
    def topic_path(self) -> str:
        """The absolute path of the topic: the path of the table, then the changefeed."""
        return f"{self.table_path}/{self.changefeed}"

    def __str__(self) -> str:
        return f"changefeed {self.changefeed} of table {self.table_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and credentials for YDB. At most one kind; none means the SDK's environment variables.

    `endpoint`: ``grpc://host:port``, or ``grpcs://host:port`` for TLS. `root_certificates`: a PEM file on the worker.
    Secrets are never shown.
    """

    endpoint: str
    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    service_account_file: str = ""
    metadata_credentials: bool = False
    root_certificates: str = ""

    @classmethod
    def checked(cls, options: YdbChangefeedOptions) -> Connection:
        """Return the connection that the options of a transform describe.

        Raises:
            UsageError: the endpoint is malformed, several kinds of credentials are given, or a password without a
                user.
        """
        made = cls(
            endpoint=options.endpoint,
            token=options.token or "",
            user=options.user or "",
            password=options.password or "",
            service_account_file=options.service_account_file or "",
            metadata_credentials=options.metadata_credentials,
            root_certificates=options.root_certificates or "",
        )
        scheme, separator, address = made.endpoint.partition("://")
        if not separator or scheme not in ("grpc", "grpcs"):
            raise UsageError(
                f"endpoint must begin with grpc:// or, for TLS, grpcs://, such as grpc://localhost:2136; not "
                f"{made.endpoint!r}"
            )
        check_address("the address in endpoint", address)
        given = {
            "token": made.token,
            "user": made.user,
            "service_account_file": made.service_account_file,
            "metadata_credentials": made.metadata_credentials,
        }
        chosen = [name for name, value in given.items() if value]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} are all given: pass one kind of credentials")
        if made.password and not made.user:
            raise UsageError("password is given without user: pass both")
        if made.root_certificates and scheme != "grpcs":
            raise UsageError("root_certificates needs an endpoint that begins with grpcs://")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(settings.Settings):
    """The common settings, and the settings of this source.

    Args:
        consumer: whose offsets are committed; empty: none.
        delivery_seconds: how long YDB may need to write a change to the topic, for changefeeds without barriers.
        snapshot: initial or never; empty: the initial scan is read if the changefeed has one.
    """

    consumer: str = ""
    delivery_seconds: float = 10.0
    snapshot: str = ""


def checked_scan(snapshot: str | bool) -> str:
    """Return the option `snapshot` as initial or never.

    Raises:
        UsageError: it is something else.
    """
    if snapshot == WHEN_NEEDED:
        raise UsageError(
            "snapshot must be initial or never, not when_needed: YDB scans a table only when a changefeed is created"
        )
    return checked_snapshot(snapshot)


def checked_path(name: str, value: str, *, absolute: bool) -> str:
    """Return the path of a database (`absolute`) or of a table below it.

    Raises:
        UsageError: it is malformed.
    """
    wrong = not isinstance(value, str) or not value.strip("/") or value.endswith("/") or "//" in value
    if wrong or value.startswith("/") is not absolute:
        example = "/prod/shop" if absolute else "orders or sales/orders"
        kind = "an absolute path" if absolute else "a path below the database"
        raise UsageError(f"{name} must be {kind}, such as {example}, not {value!r}")
    return value
