"""The change stream as an element of the pipeline: the interface of every source's `ChangeStream`. Pure."""

from __future__ import annotations

from typing import Protocol

from penstock.timestamps import format_timestamp


class ChangeStream(Protocol):
    """A change stream and the part of it to read: from `start` to `end`, nanoseconds, both inclusive.

    It is encoded, checkpointed and resumed, so it contains only the identity of the stream. `end` None means without
    end. `start` is a fixed time even if the user asked for "now", so that every retry begins at the same time.
    `str()` names the stream in messages.
    """

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None: ...
    @property
    def identity(self) -> str:
        """The change stream and its end. A checkpoint and the running program must agree about them."""


class WithIdentity:
    """Gives a frozen dataclass with an `end` the property `identity`."""

    __slots__ = ()
    end: int | None

    @property
    def identity(self) -> str:
        """The change stream and its end. A checkpoint with another identity is rejected."""
        return f"{self}, {'without end' if self.end is None else f'to {format_timestamp(self.end)}'}"
