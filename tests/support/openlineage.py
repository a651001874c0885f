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
from pathlib import Path
from types import TracebackType
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from tests.support.http_service import HttpService, SilentHandler

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


class LineageReceiver(HttpService):
    """Keeps every event in the order of arrival. With `holds` it takes requests and does not answer."""

    def __init__(self, *, holds: bool = False) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self._released = threading.Event()
        if not holds:
            self._released.set()
        super().__init__(self._handler())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind, such as START."""
        return [event for event in list(self.events) if event["eventType"] == kind]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._released.set()
        super().__exit__(kind, error, traceback)

    def _handler(self) -> type[SilentHandler]:
        receiver = self

        class Handler(SilentHandler):
            def do_POST(self) -> None:
                assert self.path == "/api/v1/lineage"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked.set()
                receiver._released.wait()
                receiver.events.append(json.loads(body))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler
