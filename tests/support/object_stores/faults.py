"""An HTTP proxy before an object store that makes requests fail at seeded moments, and counts them.

    with FaultProxy(server.port, Faults(seed=1)) as proxy:
        run(server.url("checkpoint", proxy.port))
    proxy.log            # every request that reached the proxy, with its fault

It sees requests from outside, so its counts do not depend on the code under test.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.support.http_service import HttpService, SilentHandler

DROP_BEFORE, DROP_AFTER = "dropped", "answer lost after the effect"
BUSY_BEFORE, BUSY_AFTER = "503", "503 after the effect"
STALL = "5 s stall"
KINDS = (DROP_BEFORE, DROP_AFTER, BUSY_BEFORE, BUSY_AFTER, STALL)

_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass(frozen=True, slots=True)
class Request:
    """A request at the proxy: seconds since its start, operation, decoded path with query, and its fault."""

    at: float
    operation: str
    path: str
    fault: str | None


@dataclass
class Faults:
    """Chooses the fault of each request, from a seed. `share` of the requests fail; `stalls` of these stall."""

    seed: int
    share: float = 0.05
    stalls: float = 0.1
    on: bool = True
    _random: random.Random = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, operation: str, path: str) -> str | None:
        with self._lock:
            hit, stall = self._random.random() < self.share, self._random.random() < self.stalls
            kind = self._random.choice(KINDS[:-1])
        if not (self.on and hit):
            return None
        return STALL if stall else kind


class FaultProxy(HttpService):
    """A proxy to `port` of loopback. `fault_of` gets operation and path, and returns a fault or None.

    `latency_seconds` is added to each answer, as a network would. `without_headers` (lower case) are not passed on.
    """

    def __init__(
        self,
        port: int,
        fault_of: Callable[[str, str], str | None] = lambda operation, path: None,
        latency_seconds: float = 0.0,
        without_headers: tuple[str, ...] = (),
    ) -> None:
        super().__init__(_Handler, _Server)
        self.server.proxy = self
        self.target = port
        self.fault_of = fault_of
        self.latency_seconds = latency_seconds
        self.without_headers = without_headers
        self.log: list[Request] = []
        self._start = time.monotonic()
        self._stopped = threading.Event()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        super().__exit__(kind, error, traceback)

    def counts(self, since: int = 0) -> Counter[str]:
        """Return the number of requests of each operation, from the `since`-th request of the log on."""
        return Counter(request.operation for request in self.log[since:])

    def faults(self) -> Counter[str]:
        """Return how often each fault occurred."""
        return Counter(request.fault for request in self.log if request.fault)

    def busiest_second(self) -> int:
        """Return the largest number of requests within one second."""
        times = [request.at for request in self.log]
        begin = busiest = 0
        for end, at in enumerate(times):
            while at - times[begin] > 1:
                begin += 1
            busiest = max(busiest, end - begin + 1)
        return busiest

    def admit(self, method: str, path: str) -> str | None:
        """Log a request and return its fault."""
        operation = operation_of(method, path)
        # obstore encodes even the slashes of a key for Google Cloud Storage.
        path = urllib.parse.unquote(path)
        fault = self.fault_of(operation, path)
        self.log.append(Request(time.monotonic() - self._start, operation, path, fault))
        return fault

    def wait(self, seconds: float) -> None:
        """Wait, but not after the end of the proxy."""
        self._stopped.wait(seconds)


def operation_of(method: str, path: str) -> str:
    """Return what a request asks of the store: put, get, head, list, delete, multipart or post."""
    query = path.partition("?")[2]
    if re.search(r"(^|&)(uploads|uploadId)\b", query):
        return "multipart"
    if method == "GET" and re.search(r"(^|&)(list-type|prefix|comp=list)\b", query):
        return "list"
    if method == "POST" and re.search(r"(^|&)delete\b", query):
        return "delete"
    return method.lower()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: FaultProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed closes its connections; that is no event here."""


class _Handler(SilentHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body go out in one packet each; waiting for more would add 40 ms to each answer.
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        super().finish()

    def __getattr__(self, name: str) -> Any:
        # The base class calls do_GET, do_PUT and so on.
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def _do(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = proxy.admit(self.command, self.path)
        if fault == STALL:
            proxy.wait(5.0)
        if fault == DROP_BEFORE:
            self.close_connection = True
            return
        if fault == BUSY_BEFORE:
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        status, headers, content = self._forward(body)
        proxy.wait(proxy.latency_seconds)
        if fault == DROP_AFTER:
            self.close_connection = True
        elif fault == BUSY_AFTER:
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
        else:
            self._answer(status, headers, content)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self._upstream is None:
            self._upstream = http.client.HTTPConnection("127.0.0.1", self.server.proxy.target, timeout=60)
        upstream = self._upstream
        if upstream.sock is None:
            upstream.connect()
            upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The host of the request stays: it is part of the signature.
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in (*_HOP, *self.server.proxy.without_headers):
                upstream.putheader(name, value)
        upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body)
        answer = upstream.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        kept = [(name, value) for name, value in headers if name.lower() not in _HOP]
        # The answer to HEAD has the length of a body that it does not have.
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        for name, value in kept:
            self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
