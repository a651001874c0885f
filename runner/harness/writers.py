"""The writers of edges, and the function that chooses one. A GroupByKey has its own module, `grouped_writer.py`."""

from __future__ import annotations

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.grouped_writer import GroupedWriter
from penstock.runner.harness.writer import Send, Writer
from penstock.runner.planning.plan import Edge, Routing
from penstock.runner.protocol.frames import FRAME_BYTES
from penstock.runner.store.keys import key_group, partition_of


class RoundRobinWriter(Writer):
    """Spreads elements evenly over all partitions, in batches of neighbouring elements, which keep their order."""

    def __init__(self, edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> None:
        super().__init__(edge, coder, partition, partitions, send)
        # One stream for all targets. A batch is cut into equal shares when its number of elements is known, and no
        # element is encoded twice.
        self._batch = coder_impl.create_OutputStream()
        self._ends: list[int] = []
        """The offset in the batch at which each element ends."""

    @property
    def bytes(self) -> int:
        """Encoded bytes so far. May be called from another thread."""
        return self.sent_bytes + int(self._batch.size())

    def write(self, element: WindowedValue) -> None:
        self._coder.encode_to_stream(element, self._batch, True)
        self._ends.append(self._batch.size())
        self.records += 1
        if self._ends[-1] >= FRAME_BYTES:
            self._send_batch()

    def flush(self) -> None:
        """Send the last, incomplete blocks."""
        self._send_batch()

    def _send_batch(self) -> None:
        """Send an equal share of the batch to every partition, beginning with this one."""
        data, ends = self._batch.get(), [0, *self._ends]
        self._batch, self._ends = coder_impl.create_OutputStream(), []
        first = 0
        for turn in range(1, self._partitions + 1):
            last = (len(ends) - 1) * turn // self._partitions
            if last > first:
                # Each partition begins with itself as the target. If all began with 0, partition 0 would get the larger
                # share of every short batch.
                target = (self._partition + turn - 1) % self._partitions
                self._send(self._edge, target, data[ends[first] : ends[last]])
            first = last
        self.sent_bytes += len(data)


class KeyedWriter(Writer):
    """Sends each element to the partition that owns its key's group."""

    def __init__(self, edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> None:
        super().__init__(edge, coder, partition, partitions, send)
        self._key_coder = coder.wrapped_value_coder.key_coder().get_impl()

    def write(self, element: WindowedValue) -> None:
        # The nested encoding, because Beam's state keys have it too (`user_state.py`): an element and its state must be
        # in the same key group.
        group = key_group(self._key_coder.encode_nested(element.value[0]))
        self._append(partition_of(group, self._partitions), element)


class CarriedWriter(Writer):
    """Sends each element in each of its windows as a separate block, which the commit record stores."""

    def write(self, element: WindowedValue) -> None:
        # One window per block: entries of a record are assigned to tasks and blocked one by one, and a side input may
        # be ready for one window only.
        for window in element.windows:
            alone = WindowedValue(element.value, element.timestamp, (window,), element.pane_info)
            block = self._coder.encode_nested(alone)
            self.records += 1
            self.sent_bytes += len(block)
            self._send(self._edge, self._partition, block)


class BroadcastWriter(Writer):
    """Sends each element to every partition."""

    def write(self, element: WindowedValue) -> None:
        for target in range(self._partitions):
            self._append(target, element)


_WRITERS: dict[Routing, type[Writer]] = {
    Routing.LOCAL: Writer,
    Routing.ROUND_ROBIN: RoundRobinWriter,
    Routing.KEYED: KeyedWriter,
    Routing.GROUPED: GroupedWriter,
    Routing.RESIDUAL: CarriedWriter,
    Routing.PUBLISH: CarriedWriter,
    Routing.BROADCAST: BroadcastWriter,
}


def writer_for(edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> Writer:
    """The writer that routes the elements of an edge."""
    return _WRITERS[edge.routing](edge, coder, partition, partitions, send)
