"""The two ends of a fused stage: the operation that takes elements in, and the operations that write them to edges.

Beam's own operations at the ends of a stage use its data plane: encoded elements on one stream. Ours use the exchange.
A sink encodes an element once, directly into the block of its target partition. A source takes decoded elements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from apache_beam import coders
from apache_beam.runners import common
from apache_beam.runners.worker import operations
from apache_beam.runners.worker.bundle_processor import BeamTransformFactory
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.chain import Chain
from penstock.runner.harness.writer import Writer
from penstock.runner.planning.urns import EMPTY_URN, SINK_URN, SOURCE_URN


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
