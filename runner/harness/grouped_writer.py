"""The writer of the edge before a GroupByKey: sends the values of one key and window together."""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.writer import Send, Writer
from penstock.runner.planning.plan import Edge
from penstock.runner.protocol.frames import FRAME_BYTES
from penstock.runner.store.keys import key_group, partition_of
from penstock.runner.windows.grouping import write_group


class _WaitingGroup:
    """Encoded values of one key and window that wait to be sent. `first_us` and `last_us` are their extreme times."""

    __slots__ = ("count", "first", "first_us", "last_us", "size", "stream")

    def __init__(self, first: bytes, at_us: int) -> None:
        self.first = first
        self.stream: Any = None
        """All values; None while there is only the first one. An empty stream takes a kilobyte."""
        self.size = len(first)
        """Encoded bytes of all values."""
        self.count = 1
        self.first_us = self.last_us = at_us

    def open_stream(self) -> Any:
        """Return the stream to which the second value is written."""
        stream = self.stream = coder_impl.create_OutputStream()
        stream.write(self.first)
        self.first = b""
        return stream

    def count_one(self, size: int, at_us: int) -> None:
        """Count a value of `size` encoded bytes that was written to the stream."""
        self.size += size
        self.count += 1
        self.first_us, self.last_us = min(self.first_us, at_us), max(self.last_us, at_us)

    def values(self) -> bytes:
        """Return all values, one after the other."""
        return self.first if self.stream is None else self.stream.get()


class GroupedWriter(Writer):
    """Sends groups of values of one key and window to the partition of the key: see `grouping.write_group`.

    Values that come close after each other are sent together, in their order, so the key is hashed, encoded and sent
    once for all of them. They wait until there are `_MOST_VALUES` or `_MOST_BYTES` of them, `_MOST_GROUPS` groups, or
    `_MOST_STREAMS` groups of more than one value: then at most 16 MiB are in the streams besides the values.
    """

    _MOST_VALUES = 1 << 18
    _MOST_BYTES = 8 << 20
    _MOST_GROUPS = 1 << 16
    _MOST_STREAMS = 1 << 14

    def __init__(self, edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> None:
        super().__init__(edge, coder, partition, partitions, send)
        pair = coder.wrapped_value_coder
        values = pair.value_coder().get_impl()
        self._encode_key = pair.key_coder().get_impl().encode_nested
        self._encode_value, self._encode_to_stream = values.encode_nested, values.encode_to_stream
        self._encode_window = coder.window_coder.get_impl().encode_nested
        self._one_timestamp_per_group = edge.one_timestamp_per_group
        self._groups: dict[Any, dict[tuple[bytes, int], _WaitingGroup]] = {}
        """By window, then by encoded key and, with `one_timestamp_per_group`, by timestamp (else 0)."""
        self._waiting_bytes = 0
        self._number_of_groups = self._number_of_streams = 0
        self._send_at = self._MOST_VALUES
        """The number of `records` at which all groups are sent."""
        self._element: WindowedValue | None = None
        self._forget_place()

    @property
    def bytes(self) -> int:
        """Encoded bytes so far. May be called from another thread."""
        return super().bytes + self._waiting_bytes

    def write(self, element: WindowedValue) -> None:
        """Add an element to the group of its key and window."""
        # A user's DoFn may have made the element, and may emit it again with another timestamp.
        self._element = None
        self.put(element, element.value)

    def put(self, element: WindowedValue, pair: Any) -> None:
        """Add a pair to the group of its key in the window of `element`, whose value is not used.

        An `element` that is passed again must not have changed.
        """
        key, value = pair
        if element is not self._element:
            self._move_to(element)
        # Most elements have the key of one before, in the same window: the key need not be encoded again.
        known = self._known.get(type(key))
        group = None if known is None else known.get(key)
        if group is None:
            self._put_new(element, key, value)
        else:
            stream = group.stream or self._open_stream(group)
            self._encode_to_stream(value, stream, True)
            # As `count_one`, without the call.
            size, at_us = stream.size(), self._at_us
            self._waiting_bytes += size - group.size
            group.size = size
            group.count += 1
            if at_us < group.first_us:
                group.first_us = at_us
            elif at_us > group.last_us:
                group.last_us = at_us
            self.records += 1
        if self.records >= self._send_at or self._waiting_bytes >= self._MOST_BYTES:
            self._send_groups()

    def flush(self) -> None:
        """Send the last, incomplete blocks."""
        self._send_groups()
        super().flush()

    # The place of an element: its window and, with `one_timestamp_per_group`, its timestamp.

    def _forget_place(self) -> None:
        self._element = None
        self._at_us = 0
        self._window: Any = None
        self._known: dict[type, dict[Any, _WaitingGroup]] = {}
        """Groups of the place by key, for keys of types whose equal values are encoded equally."""

    def _move_to(self, element: WindowedValue) -> None:
        windows, at_us = element.windows, element.timestamp_micros
        # Compare windows by identity: a source emits many elements with one window object, and to compare or to hash a
        # window takes long.
        if len(windows) != 1:
            self._forget_place()
        elif windows[0] is not self._window or (at_us != self._at_us and self._one_timestamp_per_group):
            self._window = windows[0]
            # One dictionary for each type: 1 and True are equal.
            self._known = {int: {}, str: {}, bytes: {}}
        self._element, self._at_us = element, at_us

    def _put_new(self, element: WindowedValue, key: Any, value: Any) -> None:
        """Add a value to the groups of its key, which may not exist yet."""
        encoded, data, at_us = self._encode_key(key), self._encode_value(value), self._at_us
        name = (encoded, at_us if self._one_timestamp_per_group else 0)
        for window in element.windows:
            of_window = self._groups.setdefault(window, {})
            group = of_window.get(name)
            if group is None:
                group = of_window[name] = _WaitingGroup(data, at_us)
                self._waiting_bytes += len(encoded)
                self._number_of_groups += 1
                self._limit(self._number_of_groups, self._MOST_GROUPS)
            else:
                stream = group.stream or self._open_stream(group)
                stream.write(data)
                group.count_one(len(data), at_us)
            if type(key) in self._known:
                self._known[type(key)][key] = group
            self._waiting_bytes += len(data)
            self.records += 1

    def _open_stream(self, group: _WaitingGroup) -> Any:
        self._number_of_streams += 1
        self._limit(self._number_of_streams, self._MOST_STREAMS)
        return group.open_stream()

    def _limit(self, number: int, most: int) -> None:
        """Send all groups after this element if there are as many of something as there may be."""
        if number >= most:
            self._send_at = 0

    def _send_groups(self) -> None:
        groups, self._groups = self._groups, {}
        self._forget_place()
        self._waiting_bytes = self._number_of_groups = self._number_of_streams = 0
        self._send_at = self.records + self._MOST_VALUES
        for window, of_window in groups.items():
            encoded = self._encode_window(window)
            for (key, _), group in of_window.items():
                target = partition_of(key_group(key), self._partitions)
                stream = self._stream(target)
                write_group(stream, key, encoded, group.first_us, group.last_us, group.count, group.values())
                if stream.size() >= FRAME_BYTES:
                    self._flush(target)
