"""A schema registry over HTTP on a free loopback port, written from Confluent's API reference.

    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(server.url)

Compatibility levels are NONE and BACKWARD (the default), for Avro by Apache's own library, for Protobuf by the numbers
and types of fields. `requests` lists what clients asked.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from typing import Any
from urllib.parse import unquote, urlsplit

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from tests.support.http_service import HttpService, SilentHandler


class SchemaRegistryServer(HttpService):
    """Start it as a context; `url` is valid inside. `down` makes every answer HTTP 503."""

    def __init__(self) -> None:
        super().__init__(self._handler())
        self.requests: list[str] = []
        self.down = False
        self._schemas: list[tuple[str, str]] = []  # type and text; the id is the place, from 1
        self._subjects: dict[str, list[int]] = {}
        self._levels: dict[str, str] = {}
        self._lock = threading.Lock()

    def _handler(self) -> type[SilentHandler]:
        registry = self

        class Handler(SilentHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                status, answer = registry.answer(self.command, urlsplit(self.path).path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do  # noqa: N815

        return Handler

    def set_compatibility(self, subject: str, level: str) -> None:
        self._levels[subject] = level

    def texts(self, subject: str) -> list[str]:
        """Return the texts of the versions of a subject."""
        return [self._schemas[id_ - 1][1] for id_ in self._subjects.get(subject, [])]

    @property
    def subjects(self) -> list[str]:
        return sorted(self._subjects)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(f"{method} {path}")
            if self.down:
                return 503, {"error_code": 50301, "message": "down"}
            parts = [unquote(part) for part in path.strip("/").split("/")]
            match (method, *parts):
                case ("GET", "subjects"):
                    return 200, self.subjects
                case ("POST", "subjects", subject, "versions"):
                    return self._register(subject, body)
                case ("POST", "subjects", subject):
                    return self._lookup(subject, body)
                case ("GET", "subjects", subject, "versions"):
                    found = self._subjects.get(subject)
                    return (200, list(range(1, len(found) + 1))) if found else _missing(40401)
                case ("GET", "subjects", subject, "versions", version):
                    return 200, self._registered(subject, int(version))
                case ("GET", "schemas", "ids", id_):
                    if not 0 < int(id_) <= len(self._schemas):
                        return _missing(40403)
                    type_, text = self._schemas[int(id_) - 1]
                    return 200, {"schema": text, "schemaType": type_}
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: Any) -> tuple[int, Any]:
        entry = (body.get("schemaType", "AVRO"), body["schema"])
        versions = self._subjects.get(subject, [])
        if versions and self._levels.get(subject, "BACKWARD") == "BACKWARD":
            reason = _incompatible(*entry, self._schemas[versions[-1] - 1][1])
            if reason:
                return 409, {
                    "error_code": 409,
                    "message": f"Schema being registered is incompatible: {reason}",
                }
        if entry not in self._schemas:
            self._schemas.append(entry)
        id_ = self._schemas.index(entry) + 1
        if id_ not in versions:
            self._subjects[subject] = [*versions, id_]
        return 200, {"id": id_}

    def _lookup(self, subject: str, body: Any) -> tuple[int, Any]:
        entry = (body.get("schemaType", "AVRO"), body["schema"])
        for version, id_ in enumerate(self._subjects.get(subject, []), 1):
            if self._schemas[id_ - 1] == entry:
                return 200, self._registered(subject, version)
        return _missing(40403 if subject in self._subjects else 40401)

    def _registered(self, subject: str, version: int) -> dict[str, Any]:
        id_ = self._subjects[subject][version - 1]
        type_, text = self._schemas[id_ - 1]
        return {"subject": subject, "id": id_, "version": version, "schemaType": type_, "schema": text}


def _missing(code: int) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": "not found"}


def _incompatible(type_: str, new: str, old: str) -> str:
    """Return why a reader with the new schema cannot read data of the old one; empty if it can."""
    if type_ == "PROTOBUF":
        before, after = _fields(old), _fields(new)
        return ", ".join(name for name, kind in after.items() if name in before and before[name] != kind)
    found = ReaderWriterCompatibilityChecker().get_compatibility(parse(new), parse(old))
    if found.compatibility == SchemaCompatibilityType.compatible:
        return ""
    return re.sub(r"\s+", " ", f"{found.messages} at {found.locations}")


def _fields(text: str) -> dict[str, tuple[int, str]]:
    file = FileDescriptorProto.FromString(base64.b64decode(text))
    return {
        f"{path}#{field.number}": (field.type, field.type_name)
        for message in file.message_type
        for path, inner in _messages("", message)
        for field in inner.field
    }


def _messages(path: str, message: DescriptorProto) -> list[tuple[str, DescriptorProto]]:
    own = f"{path}.{message.name}"
    return [(own, message), *(each for inner in message.nested_type for each in _messages(own, inner))]
