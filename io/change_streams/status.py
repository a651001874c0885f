"""Classifies a gRPC status: retry the request, or raise an error. Pure."""

from __future__ import annotations

RETRYABLE = frozenset(
    ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL", "CANCELLED", "UNKNOWN")
)
"""Names of the status codes after which a reader asks again from its last position."""

_PLUGIN = "getting metadata from plugin failed"
_REFUSED = (
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "deleted_client",
    "invalid_scope",
    "invalid_rapt",
    "reauthentication is needed",
)
"""Errors of an OAuth token endpoint (RFC 6749, 5.2) and of google-auth that a retry cannot repair."""


class UnreachableError(Exception):
    """A request failed for a temporary reason. Ask again from the last position, after a pause.

    Prefetchers handle this error themselves, so it is not part of the public hierarchy.
    """


def status_of(code: str, details: str) -> str:
    """Return the name of a gRPC status code, with UNAUTHENTICATED where credentials were refused before the call.

    gRPC reports UNAVAILABLE for every failure to get a token. Only a token endpoint that cannot be reached is a
    temporary failure.
    """
    text = details.lower()
    if code == "UNAVAILABLE" and _PLUGIN in text and any(error in text for error in _REFUSED):
        return "UNAUTHENTICATED"
    return code


def first_line(details: str) -> str:
    """Return the first line of a status message: the rest may repeat the query or a trace."""
    return details.strip().split("\n", 1)[0]
