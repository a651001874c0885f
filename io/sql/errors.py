"""Maps errors of PostgreSQL to the outcome of a delivery. Pure.

Source: PostgreSQL documentation, "PostgreSQL Error Codes".
"""

from __future__ import annotations

from penstock.errors import ServiceError
from penstock.io.staging.delivery import TargetUnavailableError

_ROW_CLASSES = ("22", "23", "44")
"""Classes of SQLSTATE that a value of a row causes: data exceptions, constraints, CHECK OPTION of a view."""

_ROW_CODES = frozenset(
    (
        "54000",  # a row or an entry of an index is too large
        "P0001",  # RAISE EXCEPTION in a trigger
    )
)

_RETRYABLE = frozenset(
    (
        "",  # no answer of the server: the connection failed
        "25006",  # read-only transaction: the server became a standby
        "25P03",  # idle-in-transaction timeout: the process was paused in the middle of a batch
        "25P04",  # transaction timeout
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        "55P03",  # lock not available
        "57014",  # canceled, by a time limit or by an administrator
        "57P01",  # administrator shutdown
        "57P02",  # crash shutdown
        "57P03",  # the server starts or recovers
        "57P05",  # idle session timeout
    )
)
_RETRYABLE_CLASSES = ("08", "40")
"""Connection exceptions, and transactions that were rolled back because of others (deadlocks among them)."""


class SqlTargetError(ServiceError):
    """The database refuses the sink's requests. The message names the fix."""

    retryable = False


def is_row_error(sqlstate: str) -> bool:
    """Return whether a statement failed because of the values of a row."""
    return sqlstate[:2] in _ROW_CLASSES or sqlstate in _ROW_CODES


def classify_error(sqlstate: str, message: str, target: str) -> ServiceError:
    """Return the exception that an error of the server means, if it does not concern a row."""
    said = message.strip().partition("\n")[0]
    if sqlstate in _RETRYABLE or sqlstate[:2] in _RETRYABLE_CLASSES:
        # libpq reports these before there is a SQLSTATE.
        if "password authentication failed" in message or "no password supplied" in message:
            return SqlTargetError(f"{target}: {_CREDENTIALS} (PostgreSQL said: {said})")
        if "does not exist" in message and ('database "' in message or 'role "' in message):
            return SqlTargetError(f"{target}: check dbname and user in the dsn (PostgreSQL said: {said})")
        return TargetUnavailableError(f"{target}: {said}")
    advice = _ADVICE.get(sqlstate, "the server refused the request")
    return SqlTargetError(f"{target}: {advice} (PostgreSQL said {sqlstate}: {said})")


_CREDENTIALS = (
    "the server did not accept the credentials. Check user and password in the dsn, PGPASSWORD or ~/.pgpass"
)
_ADVICE = {
    "28P01": _CREDENTIALS,
    "28000": f"{_CREDENTIALS}. The role also needs an entry in pg_hba.conf",
    "3D000": "the database does not exist. Check dbname in the dsn",
    "3F000": "the schema does not exist. Create it, or choose another one with schema=",
    "42501": (
        "the role lacks a right. It needs USAGE and CREATE on the schema (or the tables and the ledger must exist), "
        "and SELECT, INSERT, UPDATE and DELETE on them"
    ),
    "42P10": "the table has no primary key or unique constraint on the key columns of the source. Create it",
}
