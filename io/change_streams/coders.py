"""The coders that sources share.

A source's `ChangeStream` and `Frontier` are encoded as JSON that begins with the version of its format. An
`UndecodableRecord` is a version byte and a msgpack map.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import msgspec
from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.errors import SetupError
from penstock.io.change_streams.undecodable import UndecodableRecord


class ChangeStreamCoder(VersionedCoder):
    """Encodes a `ChangeStream` as a JSON list: the version, the source's name, the stream's fields; deterministic.

    The name tells the streams of two sources apart: their fields may have the same number and types.
    """

    what = "a change stream element"
    system: ClassVar[str] = ""

    def fields(self, stream: Any) -> list[Any]:
        """Return the stream as a list of JSON values; here, of the dataclass's fields."""
        return [getattr(stream, field.name) for field in dataclasses.fields(stream)]

    def stream(self, fields: list[Any]) -> Any:
        """Return the stream of which `fields` gave this list."""
        return self.value_type(*fields)

    def encode(self, value: Any) -> bytes:
        fields = [self.versions[-1], self.system, *self.fields(value)]
        return json.dumps(fields, separators=(",", ":")).encode()

    def decode(self, encoded: bytes) -> Any:
        """Return the change stream.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
            SetupError: another source wrote them. Steps of two templates may have the same names, so the
                runner takes such a checkpoint for one of this pipeline.
        """
        version, system, *fields = json.loads(encoded)
        self.check_version(version)
        if system != self.system:
            raise SetupError(
                "the checkpoint belongs to a pipeline that reads another kind of source. Pass another folder as "
                "--checkpoint_dir, or start the pipeline that made the checkpoint"
            )
        return self.stream(fields)


class FrontierCoder(VersionedCoder):
    """Encodes a `Frontier` as a compact JSON object with sorted keys and the version as ``"v"``; deterministic."""

    what = "a frontier"

    def document(self, frontier: Any) -> dict[str, Any]:
        """Return the frontier as JSON values. Equal frontiers give equal documents."""
        raise NotImplementedError

    def frontier(self, document: dict[str, Any]) -> Any:
        """Return the frontier of which `document` gave this object."""
        raise NotImplementedError

    def encode(self, value: Any) -> bytes:
        document = {"v": self.versions[-1], **self.document(value)}
        return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()

    def decode(self, encoded: bytes) -> Any:
        """Return the frontier.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        document = json.loads(encoded)
        self.check_version(document.get("v"))
        return self.frontier(document)


class OuterFrontierCoder(FrontierCoder):
    """Encodes the frontiers of one kind, and the frontier of the change stream exactly as the stream's coder does.

    So a checkpoint that has no frontier of this kind any more can be continued by a program that does not use the kind,
    and the other way round.
    """

    value_type = object
    frontier_type: ClassVar[type]
    field: ClassVar[str] = ""
    """A field that only the documents of this kind have."""

    def __init__(self, stream: FrontierCoder) -> None:
        """`stream` encodes the frontier of the change stream."""
        super().__init__()
        self._stream = stream

    def outer_document(self, frontier: Any) -> dict[str, Any]:
        """Return the fields of a frontier of this kind, without its stream."""
        raise NotImplementedError

    def outer_frontier(self, document: dict[str, Any], stream: Any) -> Any:
        """Return the frontier of which `outer_document` gave this object; `stream`: its stream."""
        raise NotImplementedError

    def document(self, frontier: Any) -> dict[str, Any]:
        if not isinstance(frontier, self.frontier_type):
            return self._stream.document(frontier)
        whole: Any = frontier
        stream = None if whole.stream is None else self._stream.document(whole.stream)
        return {**self.outer_document(frontier), "stream": stream}

    def frontier(self, document: dict[str, Any]) -> Any:
        if self.field not in document:
            return self._stream.frontier(document)
        stream = document["stream"]
        return self.outer_frontier(document, None if stream is None else self._stream.frontier(stream))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._stream == other._stream

    def __hash__(self) -> int:
        return hash((type(self), self._stream))


class UndecodableRecordCoder(VersionedCoder):
    """Encodes an `UndecodableRecord`."""

    value_type = UndecodableRecord
    what = "an undecodable record"

    def encode(self, value: UndecodableRecord) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(value)

    def decode(self, encoded: bytes) -> UndecodableRecord:
        """Return the record.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        self.check_version(encoded[0] if encoded else None)
        return _decode_undecodable(memoryview(encoded)[1:])


_decode_undecodable = msgspec.msgpack.Decoder(UndecodableRecord).decode
coders.registry.register_coder(UndecodableRecord, UndecodableRecordCoder)
