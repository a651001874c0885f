"""Maps errors of Spanner's client to the outcome of a delivery. Pure."""

from __future__ import annotations

from penstock.errors import ServiceError
from penstock.io.staging.delivery import TargetUnavailableError


class SpannerTargetError(ServiceError):
    """Spanner refuses the sink's requests. The message names the fix."""

    retryable = False


# Codes that a row can cause: a value that does not fit, a missing parent, an entry of a unique index.
_ROW_CODES = frozenset(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE", "ALREADY_EXISTS"))
_CREDENTIALS = ": the credentials may not write. They need roles/spanner.databaseUser"


def is_row_error(code: str) -> bool:
    """Return whether rows were refused because of their content, from the name of a status of gRPC."""
    return code in _ROW_CODES


def classify_error(code: str, kind: str, message: str, target: str) -> ServiceError:
    """Return the exception that an error means, if it does not concern a row.

    Args:
        code: the name of the status of gRPC; "" if there was no answer.
        kind: the class of the client's error.
        message: the service's message.
        target: the name of the target.
    """
    if code == "NOT_FOUND":
        return SpannerTargetError(
            f"{target}: the database, a table or a column does not exist. Create it with the columns of the source "
            f"({message})"
        )
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return SpannerTargetError(target + _CREDENTIALS)
    return TargetUnavailableError(f"{target}: {kind}")
