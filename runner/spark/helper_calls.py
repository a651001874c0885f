"""Calls of functions in other processes of this machine: `HelperPool` sends them, `answer_calls` makes them.

One message is one call: pickled (number of the function, the function or None, arguments), and its answer the pickled
result in a tuple, or nothing if the function has raised an error. The function, and values of the classes in
`penstock.helpers.SENT_ONCE`, are sent in the first call of a connection that has them.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from pyspark import cloudpickle
from typing_extensions import Self

from penstock.helpers import SENT_ONCE

_LOOPBACK = "127.0.0.1"
_END_SECONDS = 1.0
MAX_WAITING = 6
"""Calls that a helper has at most. Two would do, but the thread that takes the answers waits for the interpreter's lock
while the task works, so a helper with two calls was idle for two thirds of the time."""


REFUSALS = (OSError, EOFError, AuthenticationError, ValueError)
"""How a connection fails. ValueError: before Python 3.12 its keys need MD5, which some machines forbid (FIPS)."""


class HelperLostError(Exception):
    """The process ended, or its function raised an error."""


class HelperPool:
    """The helpers of this process: those that connect to `port` and know `key`. Calls come from one thread."""

    def __init__(self) -> None:
        """Listen.

        Raises:
            OSError: the machine gives no port.
        """
        self.key = os.urandom(32)
        self._listener = Listener((_LOOPBACK, 0), authkey=self.key)
        self._helpers: list[_Helper] = []
        self._unsendable: dict[int, Any] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="penstock-helpers", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.address[1]
        return port

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """See `penstock.helpers.Helpers`."""
        free = [helper for helper in self._helpers if helper.is_free]
        if not free or id(function) in self._unsendable:
            return None
        helper = min(free, key=lambda each: each.waiting)
        try:
            request = helper.request(function, arguments)
        except Exception:  # pickling calls code of users, which may raise anything
            self._unsendable[id(function)] = function
            return None
        return helper.call(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed = True
        # A thread that waits in `accept` does not see that the listener is closed.
        with contextlib.suppress(OSError):
            socket.create_connection((_LOOPBACK, self.port)).close()
        # With a limit: the last process that has connected may keep silent.
        self._thread.join(_END_SECONDS)
        self._listener.close()
        for helper in self._helpers:
            helper.close()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(*REFUSALS):
                connection = self._listener.accept()
                if self._closed:
                    connection.close()
                else:
                    self._helpers.append(_Helper(connection))


class _Helper:
    """One connection, with a thread that takes the answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: dict[int, Any] = {}
        """By `id`, with a reference: no other object has this number while the connection lasts."""
        self._calls: deque[Future[Any]] = deque()
        self._lock = threading.Lock()
        self._is_lost = False
        self._thread = threading.Thread(target=self._take_answers, name="penstock-helper", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._calls)

    @property
    def is_free(self) -> bool:
        return not self._is_lost and len(self._calls) < MAX_WAITING

    def request(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
        """Return a call as bytes; raises the errors of pickling."""
        number, sent = id(function), dict(self._sent)
        code = None if number in sent else cloudpickle.dumps(function)
        sent[number] = function
        file = io.BytesIO()
        _Pickler(file, sent).dump((number, code, arguments))
        self._sent = sent
        return file.getvalue()

    def call(self, request: bytes) -> Future[Any]:
        """Send a call."""
        answer: Future[Any] = Future()
        with self._lock:
            # Under the lock: either the thread finds the call when the connection ends, or it is lost here.
            if self._is_lost:
                answer.set_exception(HelperLostError())
                return answer
            self._calls.append(answer)
        with contextlib.suppress(OSError):  # then the thread learns of it too
            self._connection.send_bytes(request)
        return answer

    def close(self) -> None:
        # The thread does not see that a connection is closed on which it waits, only that the socket has ended.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as other:
            other.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def _take_answers(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                answer = self._connection.recv_bytes()
                call = self._calls.popleft()
                try:
                    (result,) = pickle.loads(answer)
                except Exception:  # an empty answer, or a result that cannot be unpickled here
                    call.set_exception(HelperLostError())
                else:
                    call.set_result(result)
        with self._lock:
            self._is_lost = True
        for call in self._calls:
            call.set_exception(HelperLostError())


def connect(port: int, key: bytes) -> Connection:
    """Connect to a `HelperPool` of this machine.

    Raises one of `REFUSALS` if no pool listens, or has another key.
    """
    connection: Connection = Client((_LOOPBACK, port), authkey=key)
    return connection


def answer_calls(connection: Connection) -> int:
    """Make the calls that come until the other side ends; return how many came."""
    functions: dict[int, Callable[..., Any]] = {}
    _thread.received = {}
    calls = 0
    with contextlib.suppress(OSError, EOFError):
        while True:
            answer = _answer(connection.recv_bytes(), functions)
            calls += 1
            connection.send_bytes(answer)
    return calls


def _answer(request: bytes, functions: dict[int, Callable[..., Any]]) -> bytes:
    try:
        number, code, arguments = pickle.loads(request)
        if code is not None:
            functions[number] = _function(code)
        return pickle.dumps((functions[number](*arguments),), pickle.HIGHEST_PROTOCOL)
    except Exception:  # the caller calls the function too, and handles it there
        return b""


@lru_cache(maxsize=16)
def _function(code: bytes) -> Callable[..., Any]:
    # The same object in all epochs: it knows the tables that it has met.
    function: Callable[..., Any] = pickle.loads(code)
    return function


class _Pickler(pickle.Pickler):
    """Pickles values of the classes in `SENT_ONCE` the first time, and their number then."""

    def __init__(self, file: io.BytesIO, sent: dict[int, Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._sent = sent

    def reducer_override(self, value: Any) -> Any:
        if type(value) not in SENT_ONCE:
            return NotImplemented
        number = id(value)
        code = None if number in self._sent else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._sent[number] = value
        return _received, (number, code)


def _received(number: int, code: bytes | None) -> Any:
    """Return a value that is sent once. Called when a request is unpickled."""
    if code is not None:
        _thread.received[number] = pickle.loads(code)
    return _thread.received[number]


_thread = threading.local()
