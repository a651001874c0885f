"""Getting an answer out of storage that sometimes gives none."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runner.protocol.errors import CommitUnknown, OutcomeUnknown

PUT_TRIES = 8
"""How often a create is tried while its outcome is unknown, with pauses of 0.1 s to 12.8 s after each."""


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
        CommitUnknown: the storage gave no answer, again and again.
    """
    if _ask(create, what, pause):
        return True
    try:
        return read() == data
    except FileNotFoundError:  # deleted since: only a newer driver does that
        return False


def _ask(create: Callable[[], bool], what: str, pause: Callable[[float], None]) -> bool:
    for tried in range(PUT_TRIES):
        try:
            return create()
        except OutcomeUnknown as error:
            unknown = error
            pause(0.1 * 2**tried)
    raise CommitUnknown(
        f"the storage did not say, {PUT_TRIES} times, whether {what} was created. Once it answers again, "
        "start the pipeline again: it finds out and goes on"
    ) from unknown
