"""What a status says about the caller's own credentials. Pure."""

from __future__ import annotations

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
"""Errors of an OAuth token endpoint (RFC 6749, 5.2) and of google-auth that stay until somebody does something."""


def status_of(code: str, details: str) -> str:
    """Return the name of a gRPC status code, with UNAUTHENTICATED where credentials were refused before the call.

    gRPC says UNAVAILABLE for any failure to get a token; only one to reach the token endpoint passes.
    """
    said = details.lower()
    if code == "UNAVAILABLE" and _PLUGIN in said and any(error in said for error in _REFUSED):
        return "UNAUTHENTICATED"
    return code
