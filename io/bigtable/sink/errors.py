"""Maps statuses of Bigtable to the outcome of a delivery. Pure."""

from __future__ import annotations

from penstock.errors import ServiceError
from penstock.io.staging.delivery import TargetUnavailableError


class BigtableTargetError(ServiceError):
    """Bigtable refuses the sink's requests. The message names the fix."""

    retryable = False


_ROW_CODES = frozenset(("INVALID_ARGUMENT", "OUT_OF_RANGE"))
_ADVICE = {
    "NOT_FOUND": "the table or a family does not exist. Create it, with the family of versions",
    "FAILED_PRECONDITION": "a family does not exist, or the app profile routes to several clusters: conditional "
    "requests need an app profile with single-cluster routing that allows transactional writes",
    "PERMISSION_DENIED": "the credentials may not write. They need roles/bigtable.user",
    "UNAUTHENTICATED": "the credentials are not accepted",
}


def is_row_error(code: str) -> bool:
    """Return whether a change was refused because of its content, from the name of a status of gRPC."""
    return code in _ROW_CODES


def classify_error(code: str, details: str, target: str) -> ServiceError:
    """Return the exception that a status means, if it does not concern a row."""
    if code in _ADVICE:
        return BigtableTargetError(f"{target}: {_ADVICE[code]} ({details})")
    # All other statuses may be gone at the next try: the row is then compared again.
    return TargetUnavailableError(f"{target}: {code}")
