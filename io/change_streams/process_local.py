"""What a worker process makes once and keeps for all its bundles: connections, streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from os import getpid
from typing import Generic, TypeVar

Made = TypeVar("Made")


class ProcessLocal(Generic[Made]):
    """Things by key, each made when it is first asked for, and made anew in a forked child.

    Connections and threads do not survive a fork, so a child must not use those of its parent. Safe for
    threads. Grows with the number of keys; nothing is ever dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[int, Hashable], Made] = {}

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return this process's thing for the key. When `make` raises, nothing is kept."""
        own = getpid(), key
        with self._lock:
            if own not in self._made:
                self._made[own] = make()
            return self._made[own]
