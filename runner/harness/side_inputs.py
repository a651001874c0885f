"""Side inputs of one task: all elements of a PCollection, by window and, for maps, by key.

Every partition gets the whole side input. The task processes the first element of the main input only when all of this
epoch's elements of the side input have arrived. Blocks of the main input that come earlier wait in a `BlockSpool`.
Elements stay encoded, and are decoded at each look-up. In a stream a side input consists of panes (see
`planning/views.py`), and the latest pane of each window replaces the earlier ones.
"""

from __future__ import annotations

import itertools
import pickle
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from apache_beam import coders
from apache_beam.coders import coder_impl

from penstock.runner.store.cells import pack, unpack
from penstock.runner.store.runs import FileRunBuilder, Run, successor
from penstock.runner.store.scratch import scratch_folder
from penstock.runner.windows.grouping import CompleteGroup, Grouping, joined_chunks

_MEMORY_BYTES = 64 << 20
"""Memory of one side input in a batch; then it moves to scratch files."""

_FEW_GROUPS = 16
"""A spilled side input with at most this many groups (window and key) is read from the files of the grouping."""

_NUMBER = struct.Struct(">I")

_SPOOL_BYTES = 64 << 20
"""Size at which a spool moves from memory to a file."""


class SideInput(Protocol):
    """One side input of one transform, by encoded window and, for maps, by encoded key."""

    def add(self, block: bytes) -> None:
        """Add a block of encoded elements."""

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        """Decode the elements of a window (of a map: the values of a key), in order of arrival."""

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        """Decode the keys of a window, each once."""


class _Elements:
    """Splits the values of elements into key and value; `coder` encodes the PCollection's windowed elements."""

    def __init__(self, coder: coders.WindowedValueCoder, *, keyed: bool) -> None:
        self.coder: Any = coder.get_impl()
        self.window: Any = coder.window_coder
        wrapped = coder.wrapped_value_coder
        self._keyed = keyed
        self._key: Any = wrapped.key_coder().get_impl() if keyed else None
        self._value: Any = wrapped.value_coder().get_impl() if keyed else wrapped.get_impl()

    def split(self, element: Any) -> tuple[bytes, bytes]:
        """The encoded key, empty where there is none, and the encoded value."""
        if not self._keyed:
            return b"", self._value.encode_nested(element)
        key, value = element
        return self._key.encode_nested(key), self._value.encode_nested(value)


class WholeSideInput:
    """A side input of a batch: all elements of a PCollection. `keyed` elements are pairs, looked up by their key.

    In memory up to `memory_bytes`, then in scratch files, from which each look-up reads about a megabyte at a time.
    """

    def __init__(
        self, coder: coders.WindowedValueCoder, *, keyed: bool, memory_bytes: int = _MEMORY_BYTES
    ) -> None:
        self._elements = _Elements(coder, keyed=keyed)
        # Group by window first, so that all keys of a window are next to each other.
        self._grouping = Grouping(memory_bytes)
        self._lists: dict[bytes, dict[bytes, Iterable[bytes]]] | None = None
        self._file: Run | None = None

    def add(self, block: bytes) -> None:
        stream = coder_impl.create_InputStream(block)
        elements = self._elements
        while stream.size() > 0:
            element = elements.coder.decode_from_stream(stream, True)
            named, encoded = elements.split(element.value)
            for window in element.windows:
                self._grouping.add(elements.window.encode(window), named, 0, 0, encoded)

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        lists = self._complete()
        if self._file is None:
            return _decoded(lists.get(window, {}).get(key, ()), coder)
        begin = pack(window, key)
        return _decoded((chunk for _, chunk in self._file.scan([(begin, successor(begin))]) if chunk), coder)

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        lists = self._complete()
        if self._file is None:
            return _decoded(lists.get(window, {}), coder)
        begin = pack(window)
        found = (unpack(name[: -_NUMBER.size])[1] for name, _ in self._file.scan([(begin, successor(begin))]))
        return _decoded((key for key, _ in itertools.groupby(found)), coder)

    def _complete(self) -> dict[bytes, dict[bytes, Iterable[bytes]]]:
        """Prepare for look-ups. No more elements are added after this call."""
        if self._lists is None:
            self._lists = {}
            groups = self._grouping.groups()
            # The files of a grouping have no index. That is good enough for a few groups, such as the one of an
            # iterable side input. Many groups are copied to a file that has an index.
            few = list(itertools.islice(groups, _FEW_GROUPS + 1)) if self._grouping.spilled else groups
            if isinstance(few, list) and len(few) > _FEW_GROUPS:
                self._file = _indexed(itertools.chain(few, groups))
                self._grouping.close()
            else:
                for group in few:
                    self._lists.setdefault(group.key, {})[group.window] = group.chunks
        return self._lists


def _indexed(groups: Iterable[CompleteGroup]) -> Run:
    """Return a run with the chunks of all groups, by (window, key, number of the chunk)."""
    builder = FileRunBuilder()
    try:
        builder.add(
            (pack(group.key, group.window) + _NUMBER.pack(number), chunk)
            for group in groups
            for number, chunk in enumerate(joined_chunks(group.chunks))
        )
    except BaseException:
        builder.close()
        raise
    return builder.opened()


class SideInputPanes:
    """A side input of a stream: the latest pane of each window.

    `coder` encodes a pane, a windowed (b"", values); `elements` encodes one windowed value.
    """

    def __init__(
        self, coder: coders.WindowedValueCoder, elements: coders.WindowedValueCoder, *, keyed: bool
    ) -> None:
        self._elements = _Elements(elements, keyed=keyed)
        self._by_window: dict[bytes, dict[bytes, list[bytes]]] = {}
        self._panes: Any = coder.get_impl()
        self.new: dict[bytes, bytes] = {}
        """The encoded panes that came in this epoch, by encoded window."""

    def resumed(self, known: SideInputPanes) -> SideInputPanes:
        """Start with the panes of `known`, and return this object.

        `known` is shared with other tasks and stays unchanged: `add` replaces inner dicts and never changes one.
        """
        self._by_window = dict(known._by_window)
        return self

    def add(self, block: bytes) -> None:
        """Add a block of panes; each replaces the earlier pane of its window."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            pane = self._panes.decode_from_stream(stream, True)
            # The panes come from a GroupByKey, which emits each element in exactly one window.
            (window,) = pane.windows
            encoded = self._elements.window.encode(window)
            self.new[encoded] = self._panes.encode_nested(pane)
            of_window = self._by_window[encoded] = {}
            for value in pane.value[1]:
                key, data = self._elements.split(value)
                of_window.setdefault(key, []).append(data)

    def values(self, window: bytes, key: bytes, coder: Any) -> Iterator[Any]:
        return _decoded(self._by_window.get(window, {}).get(key, ()), coder)

    def keys(self, window: bytes, coder: Any) -> Iterator[Any]:
        return _decoded(self._by_window.get(window, {}), coder)

    def has(self, window: Any) -> bool:
        """Whether a window has had a pane."""
        return self._elements.window.encode(window) in self._by_window

    def windows(self) -> list[tuple[bytes, Any]]:
        """The windows that have had a pane, encoded and not."""
        return [(encoded, self._elements.window.decode(encoded)) for encoded in self._by_window]


def _decoded(encoded: Iterable[bytes], coder: Any) -> Iterator[Any]:
    for data in encoded:
        stream = coder_impl.create_InputStream(data)
        # A chunk of a group on disk holds many values, each of which knows its own end.
        while stream.size() > 0:
            yield coder.decode_from_stream(stream, True)


class BlockSpool:
    """Blocks that wait, in order: in memory, then in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=scratch_folder())  # noqa: SIM115 - closed by `release`

    def append(self, block: bytes) -> None:
        """Add a block."""
        # A pickle says where it ends, so blocks need no lengths. Only this process writes and reads the file.
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
