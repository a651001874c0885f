"""Notes of the drivers of a checkpoint, for the next start and for `penstock status`: small files next to the records.

    drivers/000000000012.started    the process of the driver of generation 12, and the pipeline that it runs (JSON)
    drivers/000000000012.ended      the state in which it ended, and why (JSON); a killed driver leaves no such note
    drivers/000000000012.000034.answers    what services have answered to it, for its metrics (JSON): the last of 34

They decide nothing in the protocol: of two drivers the newer take-over wins, with and without notes. The next driver
deletes the notes of the drivers before it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.runner.store.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{12,})\.(?:started|ended|(\d{6,})\.answers)")
_LOOKS = 3
"""How often answers are looked for that another note has replaced meanwhile."""
_DEAD_STATES = ("Z", "X")
"""States in /proc of a process that runs no code any more."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, so that another process of the same machine can see whether it still exists.

    `machine` identifies the boot of the machine and the namespace of process ids; empty if the system does not say.
    `began` is the start of the process in ticks since the boot: process ids are used again.
    """

    id: int
    host: str
    machine: str
    began: str

    @classmethod
    def current(cls) -> Process:
        """Return this process."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _machine(), _state_and_start(pid)[1])

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended for certain. False also means: it ran on another machine, or it is unknown."""
        if not self.machine or self.machine != _machine():
            return False
        state, began = _state_and_start(self.id)
        return state in _DEAD_STATES or began != self.began

    def __str__(self) -> str:
        return f"process {self.id} on {self.host}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline in the words of its user: its name, empty if it has none, and the streams that it reads."""

    name: str = ""
    reads: tuple[str, ...] = ()

    def __str__(self) -> str:
        reads = ", ".join(self.reads)
        return (f"{self.name} ({reads})" if reads else self.name) if self.name else reads


@dataclass(frozen=True, slots=True)
class Started:
    """The note of a driver that has taken over."""

    process: Process
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Ended:
    """The note of a driver that has ended. `reason` is empty, or says why it failed, without values of rows."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a pipeline's services at a time, in seconds since 1970: values of JSON by name."""

    at: float = 0.0
    values: tuple[Mapping[str, Any], ...] = ()


class DriverNotes:
    """The notes of one checkpoint. Writing never fails: without a note, the next start waits for an answer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._files, self._folder = checkpoint.filesystem, f"{checkpoint.folder}/drivers"
        self._answers = 0

    def note_start(self, generation: int, started: Started) -> None:
        """Note which process the driver of a generation is, and delete the notes of the drivers before it."""
        self._note(generation, "started", asdict(started))
        try:
            for name in self._files.list(self._folder):
                match = _NAME.fullmatch(name)
                if match and int(match[1]) < generation:
                    self._files.delete(f"{self._folder}/{name}")
        except OSError as error:
            logger.warning("could not delete old notes in the checkpoint folder: %s", error)

    def note_end(self, generation: int, ended: Ended) -> None:
        """Note how the driver of a generation has ended."""
        self._note(generation, "ended", asdict(ended))

    def note_answers(self, generation: int, answers: Answers) -> None:
        """Note what the services have answered to the driver of a generation, in place of the answers before.

        One at a time.
        """
        self._answers += 1
        # The new file first, so a reader finds the old answers or the new ones, and never none.
        self._note(generation, f"{self._answers:06d}.answers", asdict(answers))
        if self._answers > 1:
            try:
                self._files.delete(self._path(generation, f"{self._answers - 1:06d}.answers"))
            except OSError as error:
                logger.warning("could not delete an old note in the checkpoint folder: %s", error)

    def answers(self, generation: int) -> Answers:
        """Return the last answers; without values if there are none. A note may be replaced while it is read."""
        for _ in range(_LOOKS):
            names = filter(None, map(_NAME.fullmatch, self._files.list(self._folder)))
            numbers = [int(name[2]) for name in names if name[2] and int(name[1]) == generation]
            found = self._read(generation, f"{max(numbers):06d}.answers") if numbers else {}
            with suppress(KeyError, TypeError):
                return Answers(found["at"], tuple(found["values"]))
            if not numbers:
                break
        return Answers()

    def started(self, generation: int) -> Started | None:
        """Return the note; None if there is none, for example because an earlier version of Penstock took over."""
        found = self._read(generation, "started")
        with suppress(KeyError, TypeError):
            process, pipeline = found["process"], found["pipeline"]
            return Started(Process(**process), Pipeline(pipeline["name"], tuple(pipeline["reads"])))
        return None

    def ended(self, generation: int) -> Ended | None:
        """Return the note; None if the driver runs, or was killed."""
        found = self._read(generation, "ended")
        with suppress(KeyError, TypeError):
            return Ended(found["state"], found["reason"])
        return None

    def _note(self, generation: int, word: str, content: Mapping[str, Any]) -> None:
        try:
            data = json.dumps(content, sort_keys=True).encode("ascii")
            self._files.create_if_absent(self._path(generation, word), data)
        except OSError as error:
            logger.warning("could not leave a note in the checkpoint folder: %s", error)

    def _read(self, generation: int, word: str) -> dict[str, Any]:
        try:
            found = json.loads(self._files.read(self._path(generation, word)))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _path(self, generation: int, word: str) -> str:
        return f"{self._folder}/{generation:012d}.{word}"


def _machine() -> str:
    """Return the id of this boot and of this namespace of process ids; empty where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start in ticks since the boot; empty texts if there is no such process."""
    try:
        # The name of the program, in brackets, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(") ")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
