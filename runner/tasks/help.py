"""Help between the tasks of level 0: those that have nothing to read, for those that read."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from penstock.helpers import Helpers


class Help(Protocol):
    """What one task gives or takes."""

    def taken(self) -> AbstractContextManager[Helpers | None]:
        """Offer helpers in a context, if this task reads and others are idle."""

    def give(self) -> None:
        """If this task is idle, help the others until they have read."""


class NoHelp:
    """Each task works alone."""

    def taken(self) -> AbstractContextManager[None]:
        """See `Help`."""
        return nullcontext()

    def give(self) -> None:
        """See `Help`."""
