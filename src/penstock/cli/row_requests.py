"""Has a running job read rows again by their keys, in an incremental snapshot, and waits until they are read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.cli.snapshot import existing_folder
from penstock.errors import UsageError
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signal_folder import write_signal
from penstock.secrets import read_shown_references
from penstock.telemetry.state import JobState, job_state
from penstock.telemetry.status import span

_LOOK_SECONDS = 1.0
_CHANNEL = "folder"


class NotReadError(Exception):
    """The job did not read the rows. The text says why."""


def signal_folder(job: str, parameters: Mapping[str, Any]) -> Path:
    """Return the folder in which a job looks for requests.

    Raises:
        UsageError: it has none, or there is no such folder here.
    """
    if not (folder := parameters.get("signal_folder")):
        raise UsageError(
            f"{job} has no signal_folder, so the job cannot be asked to read rows again: add it to the job file, start "
            "the job again, and repair then"
        )
    return existing_folder(Path(read_shown_references(str(folder))), "repair")


class RowRequests:
    """Requests to one job. Rows are read when a committed checkpoint says so."""

    def __init__(
        self,
        remote: Any,
        pipeline: Any,
        folder: Path,
        seconds: float,
        on_wait: Callable[[str, int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`remote`: a `RemoteJob`. `pipeline`: of its job file; it knows the positions in the checkpoint. `seconds`:
        how long a request may take. `on_wait` gets the table and the number of rows while they are waited for.
        """
        self._remote, self._pipeline, self._folder = remote, pipeline, folder
        self._seconds, self._on_wait, self._clock, self._pause = seconds, on_wait, clock, pause

    def check(self) -> None:
        """Refuse a job that does not run.

        Raises:
            UsageError: the message says how it has ended.
        """
        state = self._state()
        if not state.condition.runs:
            raise UsageError(f"the job does not run ({state.text}): start it, and repair then")

    def __call__(self, table: str, keys: Sequence[str]) -> None:
        """Have the job read rows of a table; return when a checkpoint has them. `keys`: see `ChunkRequest.keys`.

        Raises:
            NotReadError: it has not read them within the time, or does not run any more.
        """
        if not keys:
            return
        id_ = f"verify-{uuid4().hex[:12]}"
        data = {"data-collections": [re.escape(table)], "keys": [json.loads(key) for key in keys]}
        file = write_signal(self._folder, id_, "execute-snapshot", data, time.time_ns())
        end = self._clock() + self._seconds
        while not self._is_read(id_, file.name):
            self._on_wait(table, len(keys))
            state = self._state()
            if not state.condition.runs:
                raise NotReadError(
                    f"the job has not read the rows of {table} and does not run any more ({state.text}). It reads them "
                    "when it is started again"
                )
            if self._clock() >= end:
                raise NotReadError(
                    f"{self._why(table, file.name)} It reads them later; --timeout waits longer"
                )
            self._pause(_LOOK_SECONDS)
        # A job with a new checkpoint would apply it again.
        file.unlink(missing_ok=True)

    def _why(self, table: str, name: str) -> str:
        late = f"the job has not read the rows of {table} after {span(self._seconds)}"
        taken = [each for each in self._progress() if name in (each.channel(_CHANNEL) or ())]
        if not taken:
            return f"{late}, and not the request in {self._folder}. Was it started with this signal_folder?"
        if taken[0].paused:
            return f"{late}: its snapshots are paused. penstock snapshot --action resume continues them."
        return f"{late}: {len(taken[0].snapshots)} snapshots are not finished."

    def _is_read(self, id_: str, name: str) -> bool:
        return any(each.has_finished(id_, _CHANNEL, name) for each in self._progress())

    def _progress(self) -> list[SnapshotProgress]:
        record = self._remote.last()
        if record is None:
            return []
        residuals = self._remote.progress(record, self._pipeline).residuals
        return list(chain.from_iterable(getattr(each.restriction, "snapshots", ()) for each in residuals))

    def _state(self) -> JobState:
        record = self._remote.last()
        if record is None:
            return job_state(None, (), time.time())
        started = self._remote.started(record.generation)
        gone = str(started.process) if started and started.process.is_gone else ""
        ended = self._remote.ended(record.generation)
        return job_state(record, (), time.time(), ended, gone)
