"""The interface between the sinks of queues and the output formats, which are in a higher layer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.event.model import ChangeEvent, Version


class Formatted(Protocol):
    """A record of a format, such as `penstock.transforms.formats.FormattedRecord`."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def version(self) -> Version: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]: ...


Format = Callable[[ChangeEvent], Iterable[Formatted]]
