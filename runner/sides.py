"""Side inputs of one task: every element of a PCollection, at hand by window and, for maps, by key.

A side input is sent to every partition and is complete before the first element of the main input is
processed; what comes earlier is held back. Elements are kept encoded and decoded each time they are asked for.
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
            key, value = element.value if self._keyed else (None, element.value)
            named = self._key.encode_nested(key) if self._keyed else b""
            encoded = self._value.encode_nested(value)
            for window in element.windows:
                of_window = self._found.setdefault(self._window.encode(window), {})
                of_window.setdefault(named, []).append(encoded)

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        """Decode the elements of a window (of a map: the values of a key), in order of arrival."""
        return _decoded(self._found.get(window, {}).get(key, ()), coder)

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        """Decode the keys of a window, each once."""
        return _decoded(self._found.get(window, {}), coder)


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
