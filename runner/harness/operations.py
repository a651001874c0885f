"""The two ends of a fused stage: the operation that takes elements in, and the operations that write them to edges.

Beam's own operations at the ends of a stage use its data plane: encoded elements on one stream. Ours use the exchange.
A sink encodes an element once, directly into the block of its target partition. A source takes decoded elements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.runners import common
from apache_beam.runners.worker import operations
from apache_beam.runners.worker.bundle_processor import BeamTransformFactory
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.chain import Chain
from penstock.runner.planning.plan import Edge, Routing
from penstock.runner.planning.urns import EMPTY_URN, SINK_URN, SOURCE_URN
from penstock.runner.protocol.frames import FRAME_BYTES
from penstock.runner.store.keys import key_group, partition_of
from penstock.runner.windows.grouping import Group, write_group

Send = Callable[[int, int, bytes], None]
"""Takes (edge, target partition, encoded elements)."""


class SourceOperation(operations.Operation):
    """Takes decoded elements in through `process_all`. `chain` runs them if the next step is in a chain."""

    def __init__(
        self,
        name_context: common.NameContext,
        consumers: Iterable[operations.Operation],
        counter_factory: Any,
        state_sampler: Any,
        windowed_coder: coders.Coder,
    ) -> None:
        # No spec: Beam's specs describe its own kinds of operations, and `Operation` reads from it only the coders of
        # the outputs.
        super().__init__(name_context, None, counter_factory, state_sampler)
        self.windowed_coder = windowed_coder
        self.first_consumers = list(consumers)
        self.chain: Chain | None = None

    def setup(self, data_sampler: Any = None) -> None:
        super().setup(data_sampler)
        # `Operation.setup` makes the receivers from the output coders of the spec. A source has no spec, so it makes
        # its only receiver here, with the counters of elements and bytes that every PCollection has in Beam's metrics.
        self.receivers = [
            operations.ConsumerSet.create(
                counter_factory=self.counter_factory,
                step_name=self.name_context.step_name,
                output_index=0,
                consumers=self.first_consumers,
                coder=self.windowed_coder,
                producer_type_hints=self._get_runtime_performance_hints(),
                producer_batch_converter=self.get_output_batch_converter(),
            )
        ]

    def process_all(self, elements: Iterable[WindowedValue]) -> None:
        """Run elements through the stage, one after the other."""
        if self.chain:
            self.chain.run(elements)
            return
        for element in elements:
            self.output(element)


class EmptyOperation(SourceOperation):
    """A Flatten without inputs: it drops the Impulse that starts its stage."""

    def process_all(self, elements: Iterable[WindowedValue]) -> None:
        """Drop the elements."""


class SinkOperation(operations.Operation):
    """Hands each element to the writers of its edges; `writers` is set for each bundle."""

    def __init__(
        self,
        name_context: common.NameContext,
        counter_factory: Any,
        state_sampler: Any,
        windowed_coder: coders.Coder,
        edges: list[int],
    ) -> None:
        super().__init__(name_context, None, counter_factory, state_sampler)
        self.windowed_coder = windowed_coder
        self.edges = edges
        self.writers: list[Writer] = []

    def process(self, windowed_value: WindowedValue) -> None:
        for writer in self.writers:
            writer.write(windowed_value)


# Beam's factory of operations looks a transform's URN up in a registry of the process. The plan gives the ends of its
# stages our URNs (`graph.py`), so Beam makes these operations and connects them with its own.
def _creator(operation: type[SourceOperation]) -> Callable[..., SourceOperation]:
    def create(
        factory: Any, transform_id: str, proto: Any, payload: Any, consumers: dict[str, list[Any]]
    ) -> SourceOperation:
        return operation(
            common.NameContext(proto.unique_name, transform_id),
            [op for ops in consumers.values() for op in ops],
            factory.counter_factory,
            factory.state_sampler,
            factory.get_only_output_coder(proto),
        )

    return create


BeamTransformFactory.register_urn(SOURCE_URN, None)(_creator(SourceOperation))
BeamTransformFactory.register_urn(EMPTY_URN, None)(_creator(EmptyOperation))


@BeamTransformFactory.register_urn(SINK_URN, bytes)
def _create_sink(
    factory: Any, transform_id: str, proto: Any, payload: bytes, consumers: dict[str, list[Any]]
) -> SinkOperation:
    return SinkOperation(
        common.NameContext(proto.unique_name, transform_id),
        factory.counter_factory,
        factory.state_sampler,
        factory.get_only_input_coder(proto),
        json.loads(payload),
    )


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


class GroupedWriter(Writer):
    """Sends groups of values of one key and window to the partition of the key: see `grouping.write_group`.

    Values that come close after each other are sent together, in their order, so the key is hashed, encoded and looked
    up once for all of them. At most `_WAITING_VALUES` values or `_WAITING_BYTES` are collected.
    """

    _WAITING_VALUES = 1 << 16
    _WAITING_BYTES = 4 << 20

    def __init__(self, edge: Edge, coder: coders.Coder, partition: int, partitions: int, send: Send) -> None:
        super().__init__(edge, coder, partition, partitions, send)
        pair = coder.wrapped_value_coder
        self._encode_key = pair.key_coder().get_impl().encode_nested
        self._encode_value = pair.value_coder().get_impl().encode_nested
        self._encode_window = coder.window_coder.get_impl().encode_nested
        self._one_timestamp_per_group = edge.one_timestamp_per_group
        self._groups: dict[Any, dict[tuple[bytes, int], Group]] = {}
        """By window, then by encoded key and, with `one_timestamp_per_group`, by timestamp (else 0)."""
        self._window: Any = None
        self._of_window: dict[tuple[bytes, int], Group] = {}
        self._by_key: dict[type, dict[Any, Group]] = {}
        """Groups of the window by key, for keys of types whose equal values are encoded equally."""
        self._waiting_bytes = 0
        self._waiting_from = 0

    @property
    def bytes(self) -> int:
        """Encoded bytes so far. May be called from another thread."""
        return super().bytes + self._waiting_bytes

    def write(self, element: WindowedValue) -> None:
        key, value = element.value
        windows, at = element.windows, element.timestamp_micros
        known = self._by_key.get(type(key))
        group = (
            None if known is None or len(windows) != 1 or windows[0] is not self._window else known.get(key)
        )
        # Most elements have the key of one before, in the same window: the key need not be encoded again.
        if group is not None and (group.first_us == at or not self._one_timestamp_per_group):
            data = self._encode_value(value)
            group.add(data, at, at)
            self._waiting_bytes += len(data)
            self.records += 1
        else:
            self._write_new(key, value, windows, at)
        if (
            self.records - self._waiting_from >= self._WAITING_VALUES
            or self._waiting_bytes >= self._WAITING_BYTES
        ):
            self._write_groups()

    def _write_new(self, key: Any, value: Any, windows: Iterable[Any], at: int) -> None:
        """Add a value to the groups of its key, which may not exist yet."""
        encoded, data = self._encode_key(key), self._encode_value(value)
        name = (encoded, at if self._one_timestamp_per_group else 0)
        for window in windows:
            # Compare by identity first: a source emits many elements with one window object, and a look-up would hash
            # the window for each element.
            if window is not self._window:
                self._select_window(window)
            group = self._of_window.get(name)
            if group is None:
                group = self._of_window[name] = Group([data], at, at)
                self._waiting_bytes += len(encoded)
            else:
                group.add(data, at, at)
            if type(key) in self._by_key:
                self._by_key[type(key)][key] = group
            self._waiting_bytes += len(data)
            self.records += 1

    def flush(self) -> None:
        """Send the last, incomplete blocks."""
        self._write_groups()
        super().flush()

    def _select_window(self, window: Any) -> None:
        self._window, self._of_window = window, self._groups.setdefault(window, {})
        # One dictionary for each type: 1 and True are equal.
        self._by_key = {int: {}, str: {}, bytes: {}}

    def _write_groups(self) -> None:
        groups, self._groups = self._groups, {}
        self._window, self._by_key, self._waiting_bytes, self._waiting_from = None, {}, 0, self.records
        for window, of_window in groups.items():
            encoded = self._encode_window(window)
            for (key, _), group in of_window.items():
                target = partition_of(key_group(key), self._partitions)
                stream = self._stream(target)
                write_group(stream, key, encoded, group)
                if stream.size() >= FRAME_BYTES:
                    self._flush(target)


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
