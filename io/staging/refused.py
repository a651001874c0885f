"""The error output of a sink that sends rows after the commit: events that the target refuses. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.event.model import ChangeEvent

REFUSED = "refused"
"""The tag of the error output, and the name of the counter of its events."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that a target does not have, because it refused the row.

    `target` names the target without secrets. `reason` is the fault without values of the row. The event has its
    position (`ChangeEvent.version`).
    """

    event: ChangeEvent
    target: str
    reason: str
