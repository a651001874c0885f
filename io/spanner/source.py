"""The change stream that is read, and the connection to it: two values with different lifetimes.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only the identity
of the stream. A `Connection` belongs to the running program. It may change between a stop and a resume (another
endpoint or credentials), so it is never in a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import Self

from penstock.errors import UsageError
from penstock.io.change_streams import connection
from penstock.io.change_streams.incremental.options import NEVER, checked_snapshot
from penstock.io.change_streams.source import WithIdentity
from penstock.io.spanner.options import SpannerOptions
from penstock.io.spanner.replicas import Replicas

EMULATOR_VARIABLE = "SPANNER_EMULATOR_HOST"
"""Environment variable that names the `host:port` of an emulator."""


class InDatabase(Protocol):
    """A database, or a part of one, that a client reads from; `str()` names it in messages."""

    @property
    def database_path(self) -> str:
        """The database's resource name."""


SNAPSHOT_AT_START, SNAPSHOT_NOW = "at start", "now"
"""The values of `ChangeStream.snapshot`, besides the empty text."""


@dataclass(frozen=True, slots=True)
class ChangeStream(WithIdentity):
    """A change stream and the part of it to read: from `start` to `end`, nanoseconds, both inclusive.

    `end` None means without end. The start is a fixed time even if the user asked for "now", so that every retry
    reads from the same one. `snapshot` is empty or says as of when all rows are read before the changes: as of the
    start, or as of the time at which the service begins to read them.
    """

    project: str
    instance: str
    database: str
    change_stream: str
    start: int
    end: int | None
    snapshot: str = ""

    @property
    def database_path(self) -> str:
        """The database's resource name."""
        return f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    @property
    def short_name(self) -> str:
        """The change stream, for messages."""
        return f"change stream {self.change_stream}"

    def __str__(self) -> str:
        return f"{self.short_name} of {self.database_path}"


PRIORITIES = ("LOW", "MEDIUM", "HIGH")
"""Priorities of requests (google.spanner.v1.RequestOptions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(connection.Connection):
    """The address and credentials with which a worker reaches Spanner, and the options of its requests.

    `root_certificates`, `client_certificate` and `client_key` are paths of PEM files, which every worker reads. With
    one of them the endpoint is a self-managed one: application default credentials are not used.
    """

    plain_text: bool = False
    root_certificates: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    database_role: str | None = None
    rpc_priority: str | None = None
    replicas: Replicas = field(default_factory=Replicas)

    @classmethod
    def checked(cls, options: SpannerOptions) -> Self:
        """Return the connection that the options of a transform describe; see `from_arguments` for the emulator.

        Raises:
            UsageError: one of them is malformed, or they do not fit together.
        """
        found = cls.of_options(
            EMULATOR_VARIABLE,
            options,
            replicas=Replicas.checked(
                options.include_replicas, options.exclude_replicas, options.auto_failover
            ),
            plain_text=options.plain_text,
            root_certificates=options.root_certificates,
            client_certificate=options.client_certificate,
            client_key=options.client_key,
            database_role=options.database_role,
            rpc_priority=options.rpc_priority,
        )
        found._check()
        return found

    @property
    def emulated(self) -> bool:
        """Whether it reaches an emulator."""
        return self.emulator_host is not None

    @property
    def private_tls(self) -> bool:
        """Whether certificates are given."""
        return bool(self.root_certificates or self.client_certificate)

    def _check(self) -> None:
        certificates = {
            "root_certificates": self.root_certificates,
            "client_certificate": self.client_certificate,
            "client_key": self.client_key,
        }
        given = [name for name, value in certificates.items() if value]
        if self.plain_text and not self.api_endpoint:
            raise UsageError("plain_text is for an api_endpoint: pass one, or leave plain_text out")
        if given and not self.api_endpoint:
            raise UsageError(f"{given[0]} is for an api_endpoint: pass one, or leave {given[0]} out")
        if given and self.plain_text:
            raise UsageError(f"plain_text and {given[0]} are both given: pass one of them")
        if bool(self.client_certificate) != bool(self.client_key):
            raise UsageError("client_certificate and client_key belong together: pass both")
        if self.rpc_priority not in (None, *PRIORITIES):
            raise UsageError(
                f"rpc_priority={self.rpc_priority!r}: pass one of {', '.join(PRIORITIES)}, or leave it out"
            )


def snapshot_of(snapshot: str | bool, *, start_given: bool) -> str:
    """Return `ChangeStream.snapshot` for the argument `snapshot`.

    Raises:
        UsageError: it is not one of the values that every source has.
    """
    if checked_snapshot(snapshot) == NEVER:
        return ""
    return SNAPSHOT_AT_START if start_given else SNAPSHOT_NOW
