"""The base of all coders of Penstock: deterministic, with a version in the encoded bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import msgspec
from apache_beam import coders

ValueT = TypeVar("ValueT")


class VersionedCoder(coders.Coder):  # type: ignore[misc, unused-ignore]
    """A deterministic coder of `value_type`; all coders of one class are equal."""

    value_type: ClassVar[type]
    what: ClassVar[str]
    """The encoded thing with its article, for messages."""
    versions: ClassVar[tuple[int, ...]] = (1,)
    """The versions of the format that this release reads."""

    def check_version(self, version: Any) -> None:
        """Reject a format that this release does not read.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        if version not in self.versions:
            known = " and ".join(str(each) for each in self.versions)
            raise ValueError(
                f"{self.what} of format version {version} cannot be read by this release, which knows version "
                f"{known}: finish the job, or resume the checkpoint with the release that wrote it"
            )

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type:
        return self.value_type

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def cached_coding(kind: type[ValueT]) -> tuple[Callable[[ValueT], bytes], Callable[[bytes], ValueT]]:
    """Return the functions from a value to msgpack and back. Each keeps its last 1,024 results.

    For values that many records share, such as the description of a table: after decoding they share one object.
    """
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    return lru_cache(maxsize=1024)(encode), lru_cache(maxsize=1024)(decode)
