"""The base of readers that look at a target again and again, in a thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

from typing_extensions import Self

from tests.support.waiting import join


class Looking:
    """Calls `look` while its context is open, and once more at its end if the block did not fail.

    With `forgiving` an error of `look` counts only at the end: the target may be down or not there yet.
    """

    def __init__(self, every_seconds: float, *, forgiving: bool = False) -> None:
        self._every, self._forgiving = every_seconds, forgiving
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def look(self) -> None:
        """Look once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        join(self._thread)
        if error is None:
            self.look()

    def _run(self) -> None:
        while not self._end.wait(self._every):
            with suppress(*[Exception] if self._forgiving else []):
                self.look()
