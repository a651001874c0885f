"""A reader that trusts the times until which targets are complete, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tests.support.looking import Looking


@dataclass(frozen=True, slots=True)
class Place:
    """Where a time is read, and the target that it promises.

    - `times` returns the times by name; None: not known.
    - `missing` reads the target; for a name and a time in seconds it returns one sentence for each change that is not
      there.
    """

    name: str
    times: Callable[[], Mapping[str, datetime | None]]
    missing: Callable[[Mapping[str, float]], Iterable[str]]


class TrustingReader(Looking):
    """Reads the time, then the target: each change below the time must be there, and no time may go back.

    `wrong` has one sentence for each fault, `seen` the number of different times of each place. A target that is not
    there yet, or is down, is read again; the last look must succeed.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        # One thread for all places: the default connection of DuckDB is not for several.
        super().__init__(0.5, forgiving=True)
        self.wrong: list[str] = []
        self._places = list(places)
        self.seen = dict.fromkeys((place.name for place in self._places), 0)
        self._last: dict[tuple[str, str], float] = {}

    def look(self) -> None:
        """Look once."""
        for place in self._places:
            self._look_at(place)

    def _look_at(self, place: Place) -> None:
        known = {name: at.timestamp() for name, at in place.times().items() if at is not None}
        for name, at in known.items():
            before = self._last.get((place.name, name), 0.0)
            if at < before:
                self.wrong.append(f"{place.name}: {name} went back from {before} to {at}")
            self.seen[place.name] += at > before
            self._last[place.name, name] = at
        if known:
            self.wrong += [f"{place.name}: {each}" for each in place.missing(known)]
