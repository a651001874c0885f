"""The coders of a source's `ChangeStream` and `Frontier`: JSON that begins with the version of its format."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from penstock.coders import VersionedCoder
from penstock.errors import SetupError


class ChangeStreamCoder(VersionedCoder):
    """Encodes a `ChangeStream` as a JSON list of the version and the stream's fields; deterministic."""

    what = "a change stream element"

    def fields(self, stream: Any) -> list[Any]:
        """Return the stream as a list of JSON values; here, of the dataclass's fields."""
        return [getattr(stream, field.name) for field in dataclasses.fields(stream)]

    def stream(self, fields: list[Any]) -> Any:
        """Return the stream of which `fields` gave this list."""
        return self.value_type(*fields)

    def encode(self, value: Any) -> bytes:
        return json.dumps([self.versions[-1], *self.fields(value)], separators=(",", ":")).encode()

    def decode(self, encoded: bytes) -> Any:
        """Return the change stream.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
            SetupError: they are those of another source. Steps of two templates may have the same names, so the
                runner takes such a checkpoint for one of this pipeline.
        """
        version, *fields = json.loads(encoded)
        self.check_version(version)
        try:
            return self.stream(fields)
        except (TypeError, ValueError) as error:
            raise SetupError(
                "the checkpoint belongs to a pipeline that reads another kind of source. Pass another folder as "
                "--checkpoint_dir, or start the pipeline that made the checkpoint"
            ) from error


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
