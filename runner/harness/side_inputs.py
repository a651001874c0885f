"""Side inputs of one task: all elements of a PCollection, by window and, for maps, by key.

Every partition gets the whole side input. All of it that an epoch makes is there before the first element of the main
input is processed. Blocks of the main input that come earlier wait in a `BlockSpool`. Elements stay encoded, and
are decoded at each look-up. In a stream a side input consists of panes (see `planning/views.py`); the latest pane of
each window counts.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl

_SPOOL_BYTES = 64 << 20
"""Size at which a spool moves from memory to a file."""


class SideInput:
    """One side input of one transform.

    `coder` is that of the PCollection's windowed elements; `keyed` elements are pairs, looked up by their key.
    """

    def __init__(self, coder: coders.WindowedValueCoder, *, keyed: bool) -> None:
        self._elements: Any = coder.get_impl()
        self._window: Any = coder.window_coder
        wrapped = coder.wrapped_value_coder
        self._keyed = keyed
        self._key: Any = wrapped.key_coder().get_impl() if keyed else None
        self._value: Any = wrapped.value_coder().get_impl() if keyed else wrapped.get_impl()
        self._by_window: dict[bytes, dict[bytes, list[bytes]]] = {}

    def add(self, block: bytes) -> None:
        """Add a block of encoded elements."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            element = self._elements.decode_from_stream(stream, True)
            named, encoded = self._split(element.value)
            for window in element.windows:
                of_window = self._by_window.setdefault(self._window.encode(window), {})
                of_window.setdefault(named, []).append(encoded)

    def _split(self, element: Any) -> tuple[bytes, bytes]:
        """The encoded key, empty where there is none, and the encoded value."""
        if not self._keyed:
            return b"", self._value.encode_nested(element)
        key, value = element
        return self._key.encode_nested(key), self._value.encode_nested(value)

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        """Decode the elements of a window (of a map: the values of a key), in order of arrival."""
        return _decoded(self._by_window.get(window, {}).get(key, ()), coder)

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        """Decode the keys of a window, each once."""
        return _decoded(self._by_window.get(window, {}), coder)


class SideInputPanes(SideInput):
    """A side input of a stream: the latest pane of each window.

    `coder` is that of the panes, windowed (b"", values); `elements` that of one windowed value.
    """

    def __init__(
        self, coder: coders.WindowedValueCoder, elements: coders.WindowedValueCoder, *, keyed: bool
    ) -> None:
        super().__init__(elements, keyed=keyed)
        self._panes: Any = coder.get_impl()
        self.new: dict[bytes, bytes] = {}
        """The encoded panes that came in this epoch, by encoded window."""

    def resumed(self, known: SideInputPanes) -> SideInputPanes:
        """Start with the panes of another one, which stays unchanged: its inner dicts are replaced, never written."""
        self._by_window = dict(known._by_window)
        return self

    def add(self, block: bytes) -> None:
        """Add a block of panes; each replaces the earlier pane of its window."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            pane = self._panes.decode_from_stream(stream, True)
            (window,) = pane.windows
            encoded = self._window.encode(window)
            self.new[encoded] = self._panes.encode_nested(pane)
            of_window = self._by_window[encoded] = {}
            for value in pane.value[1]:
                key, data = self._split(value)
                of_window.setdefault(key, []).append(data)

    def has(self, window: Any) -> bool:
        """Whether a window has had a pane."""
        return self._window.encode(window) in self._by_window

    def windows(self) -> list[tuple[bytes, Any]]:
        """The windows that have had a pane, encoded and not."""
        return [(encoded, self._window.decode(encoded)) for encoded in self._by_window]


def _decoded(encoded: Iterable[bytes], coder: Any) -> Iterator[Any]:
    for data in encoded:
        yield coder.decode_nested(data)


class BlockSpool:
    """Blocks that wait, in order: in memory, then in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - closed by `release`

    def append(self, block: bytes) -> None:
        """Add a block."""
        pickle.dump(block, self._file, pickle.HIGHEST_PROTOCOL)

    def release(self) -> Iterator[bytes]:
        """Yield all blocks, then delete them."""
        self._file.seek(0)
        with self._file:
            while True:
                try:
                    block: bytes = pickle.load(self._file)
                except EOFError:
                    return
                yield block
