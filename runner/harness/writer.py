"""The base of the writers: encodes the elements of one edge into blocks, one for each target partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.planning.plan import Edge
from penstock.runner.protocol.frames import FRAME_BYTES

Send = Callable[[int, int, bytes], None]
"""Takes (edge, target partition, encoded elements)."""


class Writer:
    """Encodes the elements of one edge in one bundle; counts what it has written."""

    def __init__(self, edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> None:
        self._edge = edge.index
        self._coder = coder.get_impl()
        self._partition = partition
        self._partitions = partitions
        self._send = send
        # By target partition. A stream exists only while it has elements, so a bundle without output sends no block.
        self._streams: dict[int, Any] = {}
        self.records = 0
        self.sent_bytes = 0

    @property
    def bytes(self) -> int:
        """Encoded bytes so far. May be called from another thread."""
        # Sum over a copy: the writing thread may add a stream at the same time.
        return self.sent_bytes + sum(stream.size() for stream in list(self._streams.values()))

    def write(self, element: WindowedValue) -> None:
        """Encode an element into the block of its partition."""
        self._append(self._partition, element)

    def put(self, element: WindowedValue, value: Any) -> None:
        """Encode a value as an element with the timestamp and the windows of `element`."""
        self.write(element.with_value(value))

    def flush(self) -> None:
        """Send the last, incomplete blocks."""
        for target in list(self._streams):
            self._flush(target)

    def _append(self, target: int, element: WindowedValue) -> None:
        stream = self._stream(target)
        # Encode even if the target is this partition. The DoFn that made the element may change it later, and a block
        # is not affected by that. It also keeps one code path for all targets.
        self._coder.encode_to_stream(element, stream, True)
        self.records += 1
        if stream.size() >= FRAME_BYTES:
            self._flush(target)

    def _stream(self, target: int) -> Any:
        stream = self._streams.get(target)
        if stream is None:
            stream = self._streams[target] = coder_impl.create_OutputStream()
        return stream

    def _flush(self, target: int) -> None:
        block = self._streams.pop(target).get()
        self.sent_bytes += len(block)
        self._send(self._edge, target, block)
