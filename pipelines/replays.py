"""Plans replays of dead letters: a list of files for each replay, written before it starts.

    <checkpoint folder>-replays/
      000001.json         the files of replay 1 below the folder of dead letters
      000001/             its checkpoint

Published files never change, so a file belongs to one replay. The list is written first, and a replay that did not
reach its end is continued before another one begins. So a letter is replayed once, also after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.object_stores import locate, store_at


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """One replay: its number, its checkpoint folder, and the files whose letters it replays."""

    number: int
    checkpoint: str
    files: tuple[str, ...]


class ReplayFolder:
    """The replays of the job with a checkpoint folder, which is a path or a URL."""

    def __init__(self, checkpoint: str) -> None:
        # Options of a URL stay at its end.
        folder, separator, options = checkpoint.partition("?")
        self._folder, self._options = f"{folder.rstrip('/')}-replays", separator + options

    def planned(self) -> Iterator[PlannedReplay]:
        """Yield the replays in their order."""
        number = 1
        while (data := self._read(f"{number:06d}.json")) is not None:
            files = tuple(json.loads(data)["files"])
            yield PlannedReplay(number, self._checkpoint(number), files)
            number += 1

    def plan(self, files: Collection[str]) -> PlannedReplay:
        """Add a replay of files. If another command adds one at the same time, its number is taken: try again.

        Raises:
            FileExistsError: another command has just added a replay.
        """
        number = sum(1 for _ in self.planned()) + 1
        self._create(f"{number:06d}.json", json.dumps({"files": sorted(files)}).encode())
        return PlannedReplay(number, self._checkpoint(number), tuple(sorted(files)))

    def _checkpoint(self, number: int) -> str:
        return f"{self._folder}/{number:06d}{self._options}"

    def _location(self) -> Any:
        return locate(self._folder + self._options)

    def _read(self, name: str) -> bytes | None:
        location = self._location()
        try:
            return (
                Path(location, name).read_bytes()
                if isinstance(location, str)
                else store_at(location).read(name)
            )
        except FileNotFoundError:
            return None

    def _create(self, name: str, data: bytes) -> None:
        location = self._location()
        if isinstance(location, str):
            Path(location).mkdir(mode=0o700, parents=True, exist_ok=True)
            with Path(location, name).open("xb") as new:
                new.write(data)
        elif not store_at(location).create(name, data):
            raise FileExistsError(name)
