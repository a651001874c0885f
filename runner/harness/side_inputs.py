"""Side inputs of one task: every element of a PCollection, at hand by window and, for maps, by key.

A side input is sent to every partition and is complete, as far as the epoch goes, before the first element of the
main input is processed; what comes earlier is held back. Elements are kept encoded and decoded each time they are
asked for. In a stream a side input is made of panes (see `views.py`), of which the latest of each window counts.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl

_HELD_BYTES = 64 << 20


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
        self._found: dict[bytes, dict[bytes, list[bytes]]] = {}

    def add(self, block: bytes) -> None:
        """Take in a block of encoded elements."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            element = self._elements.decode_from_stream(stream, True)
            named, encoded = self._split(element.value)
            for window in element.windows:
                of_window = self._found.setdefault(self._window.encode(window), {})
                of_window.setdefault(named, []).append(encoded)

    def _split(self, element: Any) -> tuple[bytes, bytes]:
        """The encoded key, empty where there is none, and the encoded value."""
        if not self._keyed:
            return b"", self._value.encode_nested(element)
        key, value = element
        return self._key.encode_nested(key), self._value.encode_nested(value)

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        """Decode the elements of a window (of a map: the values of a key), in order of arrival."""
        return _decoded(self._found.get(window, {}).get(key, ()), coder)

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        """Decode the keys of a window, each once."""
        return _decoded(self._found.get(window, {}), coder)


class Panes(SideInput):
    """A side input of a stream: the latest pane of each window.

    `coder` is that of the panes, windowed (b"", values); `elements` that of one windowed value.
    """

    def __init__(
        self, coder: coders.WindowedValueCoder, elements: coders.WindowedValueCoder, *, keyed: bool
    ) -> None:
        super().__init__(elements, keyed=keyed)
        self._panes: Any = coder.get_impl()
        self.new: dict[bytes, bytes] = {}
        """Encoded panes by encoded window, as far as they came in this epoch."""

    def resumed(self, known: Panes) -> Panes:
        """Begin with the panes of another one, which stays as it is."""
        self._found = dict(known._found)
        return self

    def add(self, block: bytes) -> None:
        """Take in a block of panes."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            pane = self._panes.decode_from_stream(stream, True)
            (window,) = pane.windows
            encoded = self._window.encode(window)
            self.new[encoded] = self._panes.encode_nested(pane)
            of_window = self._found[encoded] = {}
            for value in pane.value[1]:
                key, data = self._split(value)
                of_window.setdefault(key, []).append(data)

    def shows(self, window: Any) -> bool:
        """Whether a window has had a pane."""
        return self._window.encode(window) in self._found

    def windows(self) -> list[tuple[bytes, Any]]:
        """The windows that have had a pane, encoded and not."""
        return [(encoded, self._window.decode(encoded)) for encoded in self._found]


def _decoded(encoded: Iterable[bytes], coder: Any) -> Iterator[Any]:
    for data in encoded:
        yield coder.decode_nested(data)


class Held:
    """Blocks that wait, in order; on disk when they become many."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115 - closed by `release`

    def append(self, block: bytes) -> None:
        """Hold a block back."""
        pickle.dump(block, self._file, pickle.HIGHEST_PROTOCOL)

    def release(self) -> Iterator[bytes]:
        """Yield all blocks, then forget them."""
        self._file.seek(0)
        with self._file:
            while True:
                try:
                    block: bytes = pickle.load(self._file)
                except EOFError:
                    return
                yield block
