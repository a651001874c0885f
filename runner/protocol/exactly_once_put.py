"""Create a file exactly once on storage that sometimes does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.object_stores.errors import StoreUnavailableError
from penstock.runner.protocol.errors import CommitUnknownError, OutcomeUnknownError

PUT_TRIES = 8
"""Number of times a request is repeated until the storage answers, with pauses of 0.1 s to 12.8 s between them."""

_Answer = TypeVar("_Answer")


def create_exactly_once(
    create: Callable[[], bool],
    read: Callable[[], bytes],
    data: bytes,
    what: str,
    pause: Callable[[float], None],
) -> bool:
    """Create a file that only one driver can create; return whether it has our content, created now or earlier.

    While the outcome is unknown, the same bytes are created again. In the end there is exactly one content. It is
    ours if and only if it is equal, because the bytes of a record name their writer.

    Raises:
        CommitUnknownError: the storage did not answer, even when asked again.
    """
    if _repeat(create, f"whether {what} was created", pause, OutcomeUnknownError):
        return True
    try:
        return read() == data
    except FileNotFoundError:  # it was deleted, which only a newer driver does
        return False


def repeat_until_answered(ask: Callable[[], _Answer], what: str, pause: Callable[[float], None]) -> _Answer:
    """Return the answer to a question to the storage; repeat it if it fails. `what` names the question in errors.

    Raises:
        CommitUnknownError: the storage did not answer, even when asked again.
    """
    return _repeat(ask, what, pause, OSError)


def _repeat(
    ask: Callable[[], _Answer], what: str, pause: Callable[[float], None], temporary: type[OSError]
) -> _Answer:
    # The pauses add up to 25.5 s.
    for tried in range(PUT_TRIES):
        try:
            return ask()
        except StoreUnavailableError as error:
            # The object store client has already repeated the request, for the time that its URL gives.
            raise CommitUnknownError(f"{error}. It is unknown {what}; the next start finds out") from error
        except temporary as error:
            unknown = error
            pause(0.1 * 2**tried)
    raise CommitUnknownError(
        f"the storage did not say, {PUT_TRIES} times, {what}. When it answers again, start the pipeline again: it "
        "finds out and continues"
    ) from unknown
