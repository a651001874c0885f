"""Names of state runs and side files. They contain the attempt: they never collide, and a sweep can tell their age.

    0000000012-0000000017-9f2c41d08a63-5e884898da280471-00000-00063.run
    generation epoch      nonce        stage (hash)     key groups, inclusive

    0000000012-0000000017-9f2c41d08a63.side

The epoch number alone is not enough: another try of the same epoch may write other data.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_PATTERN = re.compile(r"(\d{10,})-(\d{10,})-([0-9a-z]+)-([0-9a-f]{16})-(\d{5})-(\d{5})\.run")
_SIDE_FILE = re.compile(r"(\d{10,})-(\d{10,})-([0-9a-z]+)\.side")


@dataclass(frozen=True, slots=True)
class RunName:
    """The writer of a state run (driver generation, epoch, nonce of the task attempt) and the stage it is for."""

    generation: int
    epoch: int
    nonce: str
    stage: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-z]+", self.nonce):
            raise ValueError(f"a nonce consists of digits and lower-case letters, not {self.nonce!r}")

    def file_name(self, first_key_group: int, last_key_group: int) -> str:
        """Return the file's name; key groups are inclusive."""
        stage = hashlib.sha256(self.stage.encode()).hexdigest()[:16]
        return (
            f"{self.generation:010d}-{self.epoch:010d}-{self.nonce}-{stage}"
            f"-{first_key_group:05d}-{last_key_group:05d}.run"
        )


def run_age(name: str) -> tuple[int, int] | None:
    """Return the (generation, epoch) that a state run's name carries; None for a name of another form.

    If two runs contain the same key, the run with the higher tuple is newer, and its entry counts.
    """
    match = _PATTERN.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def side_file_name(generation: int, epoch: int, nonce: str) -> str:
    """Return the name of a record's side file. `generation` is the driver's, `epoch` the record's number."""
    return f"{generation:010d}-{epoch:010d}-{nonce}.side"


def side_file_age(name: str) -> tuple[int, int] | None:
    """Return the (generation, epoch) that a side file's name carries; None for a name of another form."""
    match = _SIDE_FILE.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def run_key_groups(name: str) -> range | None:
    """Return the key groups that a run's file may contain; None for a name of another form."""
    match = _PATTERN.fullmatch(name)
    return range(int(match[5]), int(match[6]) + 1) if match else None
