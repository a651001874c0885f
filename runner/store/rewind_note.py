"""The note of a rewind that has begun and has not ended: ``<checkpoint>/rewind`` (JSON).

While it is there, targets may be at an earlier time than the checkpoint, so no driver runs the pipeline. A driver looks
for it after it has taken over. The rewind writes it after its own take-over, and looks for a newer driver then. So one
of two that start at the same moment sees the other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from penstock.rewind import RewindPlan, TableRewind
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.store.checkpoint import Checkpoint
from penstock.timestamps import format_timestamp


@dataclass(frozen=True, slots=True)
class BegunRewind:
    """The decisions of a rewind before its first change. `asked_us` is the time that the user gave."""

    asked_us: int
    sink: str
    plan: RewindPlan


class RewindNote:
    """The note of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._path = checkpoint.filesystem, f"{checkpoint.folder}/rewind"

    def read(self) -> BegunRewind | None:
        """Return the rewind that has begun; None: there is none.

        Raises:
            CheckpointError: a later version of Penstock has written the note.
        """
        try:
            document = json.loads(self._files.read(self._path))
        except FileNotFoundError:
            return None
        if document["version"] != 1:
            raise CheckpointError(f"{self._path} was written by a later version of Penstock: use that one")
        tables = tuple(TableRewind(**each) for each in document["tables"])
        return BegunRewind(document["asked_us"], document["sink"], RewindPlan(document["to_us"], tables))

    def write(self, begun: BegunRewind) -> None:
        """Write the note, durably, unless there is one."""
        document = {
            "version": 1,
            "asked_us": begun.asked_us,
            "sink": begun.sink,
            "to_us": begun.plan.to_us,
            "tables": [asdict(table) for table in begun.plan.tables],
        }
        self._files.create_if_absent(self._path, json.dumps(document, sort_keys=True).encode())

    def delete(self) -> None:
        """Delete the note."""
        self._files.delete(self._path)

    def refuse(self) -> None:
        """Refuse to run the pipeline while a rewind has not ended.

        Raises:
            CheckpointError: there is a note.
        """
        if (begun := self.read()) is not None:
            asked = format_timestamp(begun.asked_us * 1000)
            raise CheckpointError(
                f"a rewind to {asked} has begun and has not ended, so the target may be at an earlier time than this "
                f"checkpoint. Repeat the command: penstock rewind JOB --to {asked}"
            )
