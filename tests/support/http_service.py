"""The base of services of tests that answer HTTP on a free port of loopback."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from typing_extensions import Self

from tests.support.waiting import join


class SilentHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *values: object) -> None: ...


class HttpService:
    """Serves while its context is open."""

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        server_type: type[ThreadingHTTPServer] = ThreadingHTTPServer,
    ) -> None:
        self.server: Any = server_type(("127.0.0.1", 0), handler)
        # A request that is held must not keep the test from its end.
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        number: int = self.server.server_port
        return number

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.shutdown()
        join(self._thread)
        self.server.server_close()
