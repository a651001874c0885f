"""A server of OpenLineage on loopback, and the published schemas of its events.

with LineageReceiver() as receiver:
    environment = {"OPENLINEAGE_URL": receiver.url}
    ...
    receiver.of("START")[0]["inputs"]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from tests.support.waiting import join

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = (_ROOT / "tests" / "golden" / "openlineage", _ROOT / "docs" / "openlineage")


@cache
def _schemas() -> Registry[Any]:
    documents = [json.loads(path.read_text()) for folder in _FOLDERS for path in folder.glob("*.json")]
    return Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in documents)


def check_event(event: dict[str, Any]) -> None:
    """Check an event, and each of its facets, against the schemas that they name. A schema must be known.

    Raises:
        jsonschema.ValidationError: it does not fit.
        referencing.exceptions.Unresolvable: there is no such schema.
    """
    _check(event, event["schemaURL"])
    for facet in facets_of(event):
        _check(facet, facet["_schemaURL"])


def facets_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all facets of an event."""
    for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for name in ("facets", "inputFacets", "outputFacets"):
            yield from holder.get(name, {}).values()


def _check(document: dict[str, Any], url: str) -> None:
    Draft202012Validator({"$ref": url}, registry=_schemas(), format_checker=FormatChecker()).validate(
        document
    )


class LineageReceiver:
    """Keeps every event in the order of arrival. With `holds` it takes requests and does not answer."""

    def __init__(self, *, holds: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self._released = threading.Event()
        if not holds:
            self._released.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind, such as START."""
        return [event for event in list(self.events) if event["eventType"] == kind]

    def __enter__(self) -> LineageReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        join(self._thread)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/api/v1/lineage"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked.set()
                receiver._released.wait()
                receiver.events.append(json.loads(body))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Not on standard error."""

        return Handler
