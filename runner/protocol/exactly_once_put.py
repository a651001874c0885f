"""Getting an answer out of storage that sometimes gives none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.runner.protocol.errors import CommitUnknownError, OutcomeUnknownError

PUT_TRIES = 8
"""How often the storage is asked until it answers, with pauses of 0.1 s to 12.8 s after each."""

Seen = TypeVar("Seen")


def create_for_certain(
    create: Callable[[], bool],
    read: Callable[[], bytes],
    data: bytes,
    what: str,
    pause: Callable[[float], None],
) -> bool:
    """Create something of which only one can be; return whether it is ours: created now or earlier.

    While the outcome is unknown the same bytes are put again. Afterwards there is exactly one content, and
    it is ours if and only if it is equal: bytes that name their writer cannot be equal by chance.

    Raises:
        CommitUnknownError: the storage gave no answer, again and again.
    """
    if _ask(create, f"whether {what} was created", pause, OutcomeUnknownError):
        return True
    try:
        return read() == data
    except FileNotFoundError:  # deleted since: only a newer driver does that
        return False


def look_for_certain(look: Callable[[], Seen], what: str, pause: Callable[[float], None]) -> Seen:
    """Return what a look at the storage shows; one that fails is repeated. `what` is what it is to tell.

    Raises:
        CommitUnknownError: the storage gave no answer, again and again.
    """
    return _ask(look, what, pause, OSError)


def _ask(ask: Callable[[], Seen], what: str, pause: Callable[[float], None], passing: type[OSError]) -> Seen:
    for tried in range(PUT_TRIES):
        try:
            return ask()
        except passing as error:
            unknown = error
            pause(0.1 * 2**tried)
    raise CommitUnknownError(
        f"the storage did not say, {PUT_TRIES} times, {what}. Once it answers again, "
        "start the pipeline again: it finds out and goes on"
    ) from unknown
