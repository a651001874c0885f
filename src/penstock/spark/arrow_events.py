"""`ArrowEvents`: events of a slice that have a shorter way to Arrow than through events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.event.model import ChangeEvent


class ArrowEvents(Sequence[ChangeEvent]):
    """Events of one table that are made when they are asked for, because most have a shorter way to Arrow."""

    def change_rows(self) -> Any:
        """Return them as change rows (`penstock.event.change_rows`), with whole old rows.

        None: there is no such way.
        """
        raise NotImplementedError
