"""Wait until targets are complete up to a time. Pure: times come from a function, clock and pause from the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from penstock.errors import UsageError

Times = Mapping[str, "datetime | None"]
"""Until when a target is complete, exclusive, by the name of a sink or of a job; None: not known."""

_LOOK_SECONDS = 1.0
"""Time between two looks. A stream commits about once a second."""


def wait_until_complete(
    look: Callable[[], Times],
    until: datetime,
    *,
    what: str,
    names: Sequence[str] = (),
    seconds: float | None = None,
    has_ended: Callable[[], bool] = lambda: False,
    on_look: Callable[[Times], None] = lambda complete: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until every time that counts is `until` or later; return whether that is so.

    `names` are parts of names in the times of `look`; all count if there are none. `what` is the noun for such a name.
    `on_look` gets the times that count. No times: nothing is complete. False: `has_ended`, or `seconds` have passed.

    Raises:
        UsageError: `until` has no time zone, or nothing has one of the `names`.
    """
    if until.tzinfo is None:
        raise UsageError(f"until must have a time zone, got {until.isoformat()}; for example add +00:00.")
    began = clock()
    while True:
        complete = _chosen(look(), names, what)
        on_look(complete)
        if complete and all(at is not None and at >= until for at in complete.values()):
            return True
        if has_ended() or (seconds is not None and clock() - began >= seconds):
            return False
        pause(_LOOK_SECONDS)


def _chosen(complete: Times, names: Sequence[str], what: str) -> Times:
    """Return the entries whose names contain one of `names`; all entries if there are no `names`."""
    if complete:
        for each in names:
            if not any(each in known for known in complete):
                raise UsageError(f"no {what} has the name {each!r}; there are {', '.join(complete)}.")
    return {known: at for known, at in complete.items() if not names or any(each in known for each in names)}
