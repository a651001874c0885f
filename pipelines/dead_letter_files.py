"""The files of dead letters: what writes them, and tells how many wait for a replay."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from penstock.io.files import WriteToJsonLines
from penstock.measurement import Measurement
from penstock.pipelines.published_folder import NoFolderError, PublishedFolder
from penstock.pipelines.replays import ReplayFolder
from penstock.pipelines.waiting_letters import waiting_letters
from penstock.transforms.dead_letters import letter_fields


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
