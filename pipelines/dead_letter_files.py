"""The files of dead letters: what writes them, and what there is to do about them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import apache_beam as beam

from penstock.compat import UTC
from penstock.io.files import WriteToJsonLines
from penstock.measurement import Measurement
from penstock.pipelines.published_folder import NoFolderError, PublishedFolder
from penstock.pipelines.replays import ReplayFolder
from penstock.transforms.dead_letters import letter_fields

_HOUR = re.compile(r"/(\d{4}-\d\d-\d\dT\d\d)/")


class WriteDeadLetters(WriteToJsonLines):
    """Writes `DeadLetter`s to JSON Lines files; see `WriteToJsonLines`, whose steps it has."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, table="dead-letters", format=letter_fields)
        self._checkpoint = ""

    def expand(self, letters: beam.PCollection[Any]) -> Any:
        # Beam's Pipeline has no public property for its options.
        options = letters.pipeline._options.get_all_options()
        self._checkpoint = options.get("checkpoint_dir") or ""
        return super().expand(letters)

    def measure(self) -> list[Measurement]:
        """Return how many files wait for a replay, and the oldest; see `penstock.measurement`. Lists the folder.

        Raises:
            UsageError, StoreError, OSError: the folder cannot be listed.
        """
        try:
            files = PublishedFolder(str(self.output)).files()
        except NoFolderError:  # it is made with the first letter
            files = []
        replays = ReplayFolder(self._checkpoint).planned() if self._checkpoint else ()
        return waiting_letters(files, {file for replay in replays for file in replay.files})


def waiting_letters(files: Iterable[str], replayed: Collection[str]) -> list[Measurement]:
    """Return the number of files that no replay has taken, and the time of the oldest letter in them, if any."""
    waiting = not_replayed(files, replayed)
    found = [
        Measurement(
            "penstock_dead_letter_files", len(waiting), "Files of dead letters that were not replayed."
        )
    ]
    if (oldest := oldest_letter(waiting)) is not None:
        text = "Event time of the oldest dead letter that was not replayed, rounded down to the hour."
        found.append(Measurement("penstock_oldest_dead_letter_timestamp_seconds", oldest, text, "s"))
    return found


def not_replayed(files: Iterable[str], replayed: Collection[str]) -> list[str]:
    """Return the files of dead letters that no replay has taken."""
    return [file for file in files if file not in replayed]


def oldest_letter(files: Iterable[str]) -> float | None:
    """Return the event time of the oldest letter in files, in seconds and rounded down to the hour; None without one.

    The hour is part of a file's name.
    """
    hours = [match[1] for match in map(_HOUR.search, files) if match]
    return datetime.fromisoformat(f"{min(hours)}:00").replace(tzinfo=UTC).timestamp() if hours else None
