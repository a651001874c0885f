"""The error that each status of YDB means. Pure.

Source: YDB documentation, "Handling errors in the API" (termination codes); ydb_status_codes.proto; the SDK's own
codes for failures of the transport (`ydb.issues.StatusCode`).
"""

from __future__ import annotations

from penstock.errors import ChangeStreamError, SetupError
from penstock.io.change_streams.status import UnreachableError, first_line

RETRYABLE = frozenset(
    (
        "ABORTED",
        "BAD_SESSION",
        "CANCELLED",
        "CLIENT_INTERNAL_ERROR",
        "CONNECTION_FAILURE",
        "CONNECTION_LOST",
        "DEADLINE_EXCEEDED",
        "EXTERNAL_ERROR",
        "GENERIC_ERROR",
        "INTERNAL_ERROR",
        "OVERLOADED",
        "SESSION_BUSY",
        "SESSION_EXPIRED",
        "SESSION_POOL_CLOSED",
        "SESSION_POOL_EMPTY",
        "STATUS_CODE_UNSPECIFIED",
        "TIMEOUT",
        "UNAVAILABLE",
        "UNDETERMINED",
    )
)
_NO_TOKEN = "CONNECTIONERROR"
"""The class that the SDK raises if it gets no token, without a status. Its text has the status of the login."""
_REFUSED_CODES = ("server_code: 400020", "server_code: 402030")
"""UNAUTHORIZED and UNAUTHENTICATED, as the SDK prints them."""
_CREDENTIALS = (
    "YDB did not accept the credentials, or they may not do this. The user needs ydb.granular.describe_schema and "
    "ydb.granular.select_row on the table and its changefeed. Check token, user and password, service_account_file, or "
    "the YDB_* environment variables"
)
_MISSING = (
    "the table or the changefeed does not exist, or the credentials may not see it. Check database, table and "
    "changefeed. Create a changefeed with ALTER TABLE … ADD CHANGEFEED. If it was dropped, its unread changes are lost"
)
_ADVICE: dict[str, tuple[type[ChangeStreamError], str]] = {
    "UNAUTHORIZED": (SetupError, _CREDENTIALS),
    "UNAUTHENTICATED": (SetupError, _CREDENTIALS),
    "SCHEME_ERROR": (SetupError, _MISSING),
    "NOT_FOUND": (SetupError, _MISSING),
    "UNIMPLEMENTED": (SetupError, "this server has no such call: YDB 23.1 or later is needed"),
    "UNSUPPORTED": (SetupError, "this server does not support the request: YDB 23.1 or later is needed"),
}


def classify_status(status: str, message: str, stream: str) -> Exception:
    """Return the exception that a status means: `UnreachableError` to try again, or the error to raise.

    `stream` is the reader's own name of what it reads, for the message.
    """
    said = first_line(message)
    if "is deleted" in message:  # a topic that was dropped while it was read
        status = "NOT_FOUND"
    if status == _NO_TOKEN:
        refused = any(code in message for code in _REFUSED_CODES)
        status = "UNAUTHORIZED" if refused else "UNAVAILABLE"
    if status in RETRYABLE:
        return UnreachableError(f"{stream}: {status}: {said}")
    kind, advice = _ADVICE.get(status, (ChangeStreamError, "YDB refused the request"))
    return kind(f"{stream}: {advice} (YDB said {status}: {said})")
