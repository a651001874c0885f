"""Asks services for measurements while a pipeline runs, such as the log that a database keeps for it.

The requests run in a thread, so a service that does not answer delays no commit and no message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import Any

from penstock.measurement import Measurement

ASK_SECONDS = 30.0
_REST = 20
"""A pause is at least this many times as long as the questions before it took: a folder may have very many files."""

Question = Callable[[], Sequence[Measurement]]
Note = Callable[[float, Sequence[Mapping[str, Any]]], None]

_LOGGER = logging.getLogger(__name__)


class ServiceWatch(AbstractContextManager["ServiceWatch"]):
    """Asks its questions again and again while the context is open. `answers` has the last ones.

    A question that raises has no answer until it is asked again: an old value would look like a new one. `note` gets
    each set of answers, and their time in seconds since 1970, in the thread that asks.
    """

    def __init__(self, questions: Sequence[Question] = (), ask_seconds: float = ASK_SECONDS) -> None:
        self._questions, self._ask_seconds = questions, ask_seconds
        self._closed = threading.Event()
        self.note: Note | None = None
        self.answers: Sequence[Measurement] = ()
        """Replaced as a whole, so a reader may compare it by identity with what it has seen."""

    def ask_of(self, pipeline: Any) -> None:
        """Ask what the transforms of a pipeline want to measure; see `penstock.measurement`."""
        # Imports Beam, as the pipeline has done.
        from penstock.preflight import methods_named

        self._questions = methods_named(pipeline, "measure")

    def __enter__(self) -> ServiceWatch:
        if self._questions:
            threading.Thread(target=self._ask_on, name="penstock-measure", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The thread is not joined: a request may take longer than the user wants to wait. It ends with the process.
        self._closed.set()

    def _ask_on(self) -> None:
        while not self._closed.is_set():
            started = time.monotonic()
            self.answers = [answer for question in self._questions for answer in _answers(question)]
            if self.note is not None:
                self.note(time.time(), [asdict(answer) for answer in self.answers])
            self._closed.wait(max(self._ask_seconds, _REST * (time.monotonic() - started)))


def _answers(question: Question) -> Sequence[Measurement]:
    try:
        return question()
    except Exception as error:
        _LOGGER.debug("no measurements of a service: %s", error)
        return ()
