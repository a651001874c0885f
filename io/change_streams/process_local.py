"""Objects that a worker process makes once and keeps for all its bundles, such as connections and pools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from os import getpid
from typing import Generic, TypeVar

Made = TypeVar("Made")


class ProcessLocal(Generic[Made]):
    """Objects by key, each made on first use, and made again in a forked child.

    Connections and threads do not survive a fork, so a child must not use its parent's objects. Thread-safe. Grows with
    the number of keys; objects are never dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[int, Hashable], Made] = {}

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return this process's object for the key. When `make` raises, no object is kept."""
        # The key contains the process id, because a forked child inherits the dictionary of its parent.
        own = getpid(), key
        with self._lock:
            if own not in self._made:
                # Under the lock, also if `make` connects: two threads must not open two clients for one key.
                self._made[own] = make()
            return self._made[own]
