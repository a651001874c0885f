"""What the sink hands over the commit, and what it tells afterwards: two values and their coders.

A `Publication` lives in the commit record, so its encoding is versioned and readable: a JSON array that
begins with the version. A reader of a later version accepts all earlier ones.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from apache_beam import coders


@dataclass(frozen=True, slots=True)
class Publication:
    """One whole staged file that is to be moved to its final name.

    `output` is the absolute folder that `staged` and `final` are relative to: it travels along, so that a
    pipeline that is resumed with another output still publishes what it had staged in the old one.
    `length` is in bytes, `crc32` that of the whole content, `lines` the number of newlines.
    """

    output: str
    staged: str
    final: str
    length: int
    crc32: int
    lines: int


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file that readers can see: whole, and never to change.

    `path` is absolute; a consumer may have taken the file away already. `length` is in bytes, `crc32` that
    of the whole content.
    """

    path: str
    length: int
    crc32: int
    lines: int


Value = TypeVar("Value", Publication, PublishedFile)


class _ArrayCoder(coders.Coder, Generic[Value]):
    """A frozen dataclass of str and int fields as a JSON array, version first."""

    version: ClassVar[int] = 1
    value_type: ClassVar[type[Any]]

    def encode(self, value: Value) -> bytes:
        fields = (self.version, *astuple(value))
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogateescape"
        )

    def decode(self, encoded: bytes) -> Value:
        version, *fields = json.loads(encoded.decode("utf-8", "surrogateescape"))
        if version != self.version:
            raise ValueError(
                f"a {self.value_type.__name__} of format version {version} cannot be read; this Penstock "
                f"reads version {self.version}. Resume with the Penstock that wrote the checkpoint, or newer."
            )
        return self.value_type(*fields)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type[Any]:
        return self.value_type

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class PublicationCoder(_ArrayCoder[Publication]):
    """Encodes a `Publication`: ``[1, output, staged, final, length, crc32, lines]``."""

    value_type = Publication


class PublishedFileCoder(_ArrayCoder[PublishedFile]):
    """Encodes a `PublishedFile`: ``[1, path, length, crc32, lines]``."""

    value_type = PublishedFile


coders.registry.register_coder(Publication, PublicationCoder)
coders.registry.register_coder(PublishedFile, PublishedFileCoder)
