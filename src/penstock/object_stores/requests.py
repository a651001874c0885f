"""The requests that an object store must answer, each sent once. Pure: `client` implements them.

The simulation of the protocol has an implementation with faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class ObjectExistsError(Exception):
    """A conditional request found an object, perhaps the caller's own, or met another request (HTTP 412 or 409)."""


class ObjectMissingError(Exception):
    """There is no such object. Some stores say the same of a missing bucket and of an unknown access key."""


class RequestUncertainError(Exception):
    """No usable answer: a lost connection, a time-out, an overloaded store. The request may have taken effect.

    The text names the reason in a few words, for example "503 Service Unavailable".
    """


class RequestRefusedError(Exception):
    """The store refused the request, and nothing has changed. The text names the reason in a few words."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a listing: its name below the prefix of the listing, and its size in bytes."""

    name: str
    size: int


class Requests(Protocol):
    """One prefix of a bucket. Keys are relative to it. Every method may raise the errors above.

    No method repeats a request. A library that repeats a conditional put may get "exists" as the answer to its own
    success, and the caller could not tell.
    """

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create an object, or raise ObjectExistsError."""

    def get(self, key: str) -> bytes:
        """Return the content of an object."""

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""

    def list_objects(self, folder: str) -> list[Listed]:
        """Return all objects whose keys begin with `folder` and a slash, with names relative to it, in any order."""

    def list_children(self, folder: str) -> list[str]:
        """Return the names directly below a folder, of objects and of further folders. "" is the prefix itself."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, in any order. Missing ones are not an error."""

    def copy_if_absent(self, source: str, target: str) -> None:
        """Copy within the store, or raise ObjectExistsError. Only if `copies_if_absent`."""

    @property
    def copies_if_absent(self) -> bool:
        """Whether the service copies on the condition that the target is absent, as one request."""
