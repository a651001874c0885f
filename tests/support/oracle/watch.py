"""A consumer in a thread: it looks at the output during the whole run, and takes files away as consumers may.

It notes faults that cannot be seen afterwards: a file that was visible before it was complete, that changed, that
disappeared, or that appeared again after it had been taken.
"""

from __future__ import annotations

import os
import random
import threading
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from penstock_emulators.oracle.lines import visible_files
from tests.support.looking import Looking


@dataclass(frozen=True, slots=True)
class Seen:
    """Identity and content of a file when it was first seen."""

    inode: int
    crc32: int


class Consumer(Looking):
    """Watches `output` while its context is open, and moves the files that it takes to the same place below `taken`.

    `take` is the share of the files that it takes each time it looks. `taken` must be on the same file system. `wrong`
    has one sentence for each fault.
    """

    def __init__(
        self, output: Path, taken: Path, *, take: float = 0.0, seed: int = 0, every_seconds: float = 0.05
    ) -> None:
        super().__init__(every_seconds)
        self.output = output
        self.taken = taken
        self.wrong: list[str] = []
        self._take = take
        self._random = random.Random(seed)
        self._there: dict[Path, Seen] = {}
        self._gone: set[Path] = set()
        self._looking = threading.Lock()

    def still(self) -> AbstractContextManager[object]:
        """Return a context in which no file is taken away, so that a reader of both folders finds each file once."""
        return self._looking

    def look(self) -> None:
        """Look once."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        found = {path.relative_to(self.output): path for path in visible_files(self.output)}
        for name in self._there.keys() - found.keys():
            self.wrong.append(f"{name} disappeared")
            del self._there[name]
        for name, path in found.items():
            self._compare(name, path)
            if self._random.random() < self._take:
                self._remove(name, path)

    def _compare(self, name: Path, path: Path) -> None:
        now = Seen(path.stat().st_ino, zlib.crc32(path.read_bytes()))
        if name in self._gone:
            self.wrong.append(f"{name} appeared again after it was taken away")
        if self._there.setdefault(name, now) != now:
            self.wrong.append(f"{name} changed after it was published")

    def _remove(self, name: Path, path: Path) -> None:
        target = self.taken / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
        del self._there[name]
        self._gone.add(name)
