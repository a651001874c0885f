"""The error that each SQLSTATE of the server means. Pure."""

from __future__ import annotations

from penstock.errors import ChangeStreamError, PositionLostError, SetupError
from penstock.io.change_streams.incremental.engine import TableGoneError
from penstock.io.change_streams.status import UnreachableError, first_line

_RETRYABLE = frozenset(
    (
        "",  # no answer of the server: the connection failed
        "53300",  # too many connections
        "53400",  # configuration limit exceeded
        "55006",  # the slot is in use: by a worker that has not given it up yet, or by another reader
        "57P01",  # administrator shutdown
        "57P02",  # crash shutdown
        "57P03",  # the server starts or recovers
        "57P05",  # idle session timeout
    )
)
_RETRYABLE_CLASSES = ("08", "40")
"""Classes of SQLSTATE: connection exceptions, and transactions that were rolled back for others."""


class LockedError(ChangeStreamError):
    """Another session holds a lock for longer than a statement waits. Try again in a new transaction."""


def classify_error(sqlstate: str, message: str, stream: str) -> Exception:
    """Return the exception that an error of the server means: `UnreachableError` to try again, or the error to raise.

    `stream` is the reader's own name of what it reads, for the message.

    Source: PostgreSQL documentation, "PostgreSQL Error Codes"; the texts come from versions 14 to 18.
    """
    said = first_line(message)
    if sqlstate in _RETRYABLE or sqlstate[:2] in _RETRYABLE_CLASSES:
        # libpq reports a refused password before there is a SQLSTATE.
        if "password authentication failed" in message or "no password supplied" in message:
            return SetupError(f"{stream}: {_CREDENTIALS} (PostgreSQL said: {said})")
        if "does not exist" in message and 'database "' in message:
            return SetupError(f"{stream}: {_DATABASE} (PostgreSQL said: {said})")
        return UnreachableError(f"{stream}: {said}")
    kind, advice = _advice(sqlstate, message)
    return kind(f"{stream}: {advice} (PostgreSQL said {sqlstate}: {said})")


def skipped_publication(stream: str) -> SetupError:
    """Return the error for a server that sends nothing of a publication because it does not exist."""
    return SetupError(f"{stream}: {_PUBLICATION}")


def _advice(sqlstate: str, message: str) -> tuple[type[ChangeStreamError], str]:
    for (code, text), answer in _KNOWN.items():
        if sqlstate == code and text in message:
            return answer
    return ChangeStreamError, "the server refused the request"


_CREDENTIALS = (
    "the server did not accept the credentials. Check user and password in the dsn, in PGPASSWORD or in "
    "~/.pgpass"
)
_DATABASE = "the database does not exist. Check dbname in the dsn"
_PUBLICATION = (
    "a publication does not exist at the position that is read. Create it (CREATE PUBLICATION … FOR TABLE …) "
    "before the slot. If it was dropped while the slot was behind, the changes up to there cannot be decoded: create "
    "a new slot and "
    "take a new snapshot of the tables. No change was skipped silently"
)
_INVALIDATED = (
    PositionLostError,
    "the server has removed log that the slot needs, so changes are lost. Take a new snapshot of the tables, drop the "
    "slot, start with a new slot and a new checkpoint folder, and raise max_slot_wal_keep_size",
)
_KNOWN: dict[tuple[str, str], tuple[type[ChangeStreamError], str]] = {
    ("28P01", ""): (SetupError, _CREDENTIALS),
    ("28000", ""): (SetupError, _CREDENTIALS + ". The role also needs an entry in pg_hba.conf"),
    ("3D000", ""): (SetupError, _DATABASE),
    ("42501", ""): (
        SetupError,
        "the role may not read the log. It needs the attribute REPLICATION (ALTER ROLE … REPLICATION) and "
        "SELECT on the "
        "published tables",
    ),
    ("42704", "replication slot"): (
        PositionLostError,
        "the slot does not exist (any more). Changes since it was dropped are lost. A new pipeline must "
        "create the slot "
        "(create_slot=True, or pg_create_logical_replication_slot); one that has a checkpoint must take a new snapshot "
        "and start with a new checkpoint folder",
    ),
    ("42704", "publication"): (SetupError, _PUBLICATION),
    ("55000", "invalidat"): _INVALIDATED,
    ("55000", "no longer available"): _INVALIDATED,
    ("55000", "can no longer get changes"): _INVALIDATED,
    ("55000", "can no longer access"): _INVALIDATED,
    ("55000", "wal_level"): (
        SetupError,
        "the server does not write what logical decoding needs. Set wal_level = logical and restart it",
    ),
    ("58P01", "requested WAL segment"): _INVALIDATED,
    ("42P01", ""): (TableGoneError, "a table does not exist"),
    ("55P03", ""): (LockedError, "a lock is held by another session"),
}
