"""Maps errors of Pub/Sub's client to the errors of the sink. Pure."""

from __future__ import annotations

from penstock.errors import ServiceError
from penstock.io.staging.delivery import TargetUnavailableError


class PubSubTargetError(ServiceError):
    """Pub/Sub refuses the sink's requests. The message names the fix."""

    retryable = False


_CREDENTIALS = (
    ": the credentials may not publish. They need roles/pubsub.publisher, and roles/pubsub.viewer for the check before "
    "the start"
)
_ADVICE = {
    "NOT_FOUND": " does not exist: create it, or pass create_topics=True",
    "PERMISSION_DENIED": _CREDENTIALS,
    "UNAUTHENTICATED": _CREDENTIALS,
}


def classify_error(code: str, kind: str, message: str, target: str) -> ServiceError:
    """Return the exception that an error means.

    Args:
        code: the name of the status of gRPC; "" if there was no answer.
        kind: the class of the client's error.
        message: the service's message.
        target: the name of the target.
    """
    if code in _ADVICE:
        return PubSubTargetError(target + _ADVICE[code])
    # The remedy depends on the message, which names the limit or the name that is wrong.
    if code == "INVALID_ARGUMENT":
        return PubSubTargetError(f"{target}: {message}")
    return TargetUnavailableError(f"{target}: {kind}")
