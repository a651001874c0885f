"""A reader that trusts the times until which an output is complete, in a thread."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from typing_extensions import Self

from penstock.errors import PenstockError
from penstock.io.files import complete_until
from penstock.runner import RemoteJob
from tests.integration.files.counting import AT_ONCE, START
from tests.support.oracle.watch import Consumer
from tests.support.waiting import join


class TrustingReader:
    """Reads the time, then the lines: each number below the time must be there, and no time may go back.

    It asks the marks in the output and the checkpoint. `wrong` has one sentence for each fault, `seen` the number of
    different times.
    """

    def __init__(self, folders: Any, consumer: Consumer, keys: int) -> None:
        self.wrong: list[str] = []
        self.seen = 0
        self._folders, self._consumer, self._keys = folders, consumer, keys
        self._last: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trusting reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        join(self._thread)
        self.look()

    def look(self) -> None:
        """Look once."""
        self._check("output", complete_until(self._folders.output))
        try:
            job = RemoteJob.open(str(self._folders.checkpoint))
        except PenstockError:
            return  # not begun
        self._check("checkpoint", job.complete_until())

    def _check(self, place: str, times: Mapping[str, datetime | None]) -> None:
        known = {name: at.timestamp() for name, at in times.items() if at is not None}
        if not known:
            return
        with self._consumer.still():
            lines = self._folders.lines()
        numbers = defaultdict(set)
        for line in lines:
            numbers[line.content["key"]].add(line.content["n"])
        for name, at in known.items():
            before = self._last.get(f"{place} {name}", 0.0)
            if at < before:
                self.wrong.append(f"{place}: {name} went back from {before} to {at}")
            self.seen += at > before
            self._last[f"{place} {name}"] = at
            # Number n has the time START + 2 n.
            below = min(self._folders.count or math.inf, math.ceil((at - START) / 2))
            kind = AT_ONCE if AT_ONCE.strip() in name else ""
            for key in (f"k{number}{kind}" for number in range(self._keys)):
                missing = below - sum(number < below for number in numbers[key])
                if missing > 0:
                    self.wrong.append(f"{place}: {key} lacks {missing} numbers below {at}")

    def _run(self) -> None:
        while not self._end.wait(0.5):
            self.look()
