"""Standard error that cannot hurt the pipeline: a lost reader, a full disk or a closed stream only lose messages."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

STDERR = 2
_LINE_BYTES = 8192
"""Longest piece of a foreign line that is passed on as one message."""


def open_missing_streams() -> None:
    """Open the null device for each of the standard streams that the caller has closed (`2>&-`).

    Otherwise the next file that any library opens gets the free number, for example 2. C libraries and the JVM would
    then write their log lines into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `descriptor`
            os.set_inheritable(opened, True)
    if sys.stdout is None:  # so Python itself leaves it if the descriptor was closed
        sys.stdout = MessageStream(1)
    if sys.stderr is None:
        sys.stderr = MessageStream(STDERR)


class MessageStream(io.TextIOBase, TextIO):
    """A text stream on a file descriptor whose `write` never raises: text that cannot be written is dropped.

    It has no buffer. A buffered stream would keep the text of a failed write, and the interpreter would try again at
    exit and turn the exit code into 120.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._cut = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Always UTF-8."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Write `text` as a whole, or drop what the system does not take."""
        with self._lock:
            self.write_from_signal_handler(text)
        return len(text)

    def write_from_signal_handler(self, text: str) -> None:
        """Write without the lock, which the interrupted code may hold."""
        data = text.encode("utf-8", "backslashreplace")
        if self._cut:  # the last message was cut, for example by a full disk: do not join this one to it
            data = b"\n" + data
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            self._cut = False
        except OSError:
            self._cut = self._cut or len(left) < len(data)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor


def message_stream() -> MessageStream:
    """Return a stream on this process's standard error, which `redirect_standard_error` does not affect."""
    return MessageStream(os.dup(STDERR))


def redirect_standard_error(handle: Callable[[str], None]) -> None:
    """From now on, pass each line that is written to file descriptor 2 to `handle`, without its line end.

    This includes C libraries and child processes that inherit the descriptor: the JVM writes to it, and so do Spark's
    Python workers. `handle` runs in a thread. Lines that a crash writes as the process dies are lost.
    """
    readable, writable = os.pipe()
    os.dup2(writable, STDERR)
    os.close(writable)
    threading.Thread(target=_read_lines, args=(readable, handle), name="penstock-stderr", daemon=True).start()


def _read_lines(descriptor: int, handle: Callable[[str], None]) -> None:
    with open(descriptor, "rb") as stream:
        while line := stream.readline(_LINE_BYTES):
            if text := line.decode("utf-8", "backslashreplace").rstrip():
                handle(text)
