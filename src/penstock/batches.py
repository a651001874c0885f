"""Several elements as one: the elements of the steps between a source and a sink, without a call for each element.

    changes = pipeline | ReadFromPostgresChangeStream(…).in_batches()      # a PCollection of `ElementBatch`
    events = changes | ToChangeEvents()                                    # still batches
    events | SingleElements() | beam.Map(print)                            # one by one

Beam spends several microseconds for each element and step: a call, a timestamp and a window, and some counters. A batch
pays for them once. Each element of a batch keeps its own timestamp. Beam's own batches (`process_batch`) have one
timestamp for all elements, so a batch here is an ordinary element that every runner can process.

Every transform of `penstock.transforms` that looks at one element at a time takes both batches and single elements, and
emits what it got. So do the sinks. Transforms with state, and functions of users, need single elements.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import coders
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from apache_beam.utils.windowed_value import create as windowed_value

MAX_ELEMENTS = 500
"""Elements after which a source ends a batch. A read can be split only between two batches."""

_WINDOWS = (GlobalWindow(),)


def single(element: Any, time_us: int) -> WindowedValue:
    """Return one element as an output of a DoFn, at its event time in µs since 1970."""
    return windowed_value(element, time_us, _WINDOWS)


class ElementBatch(NamedTuple):
    """Elements of one bundle in their order, and the event time of each in µs since 1970. Never empty.

    The timestamp of the batch itself is the earliest of these times, so that the watermark stays below all of them.
    All elements are in the global window.
    """

    elements: list[Any]
    times_us: list[int]

    def windowed(self) -> WindowedValue:
        """Return the batch as an output of a DoFn."""
        return windowed_value(self, min(self.times_us), _WINDOWS)


class ElementBatchCoder(coders.Coder):  # type: ignore[misc, unused-ignore]
    """Pickles the elements. A batch is fused with the steps around it; only foreign runners encode it."""

    def encode(self, value: ElementBatch) -> bytes:
        return pickle.dumps(tuple(value), pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> ElementBatch:
        return ElementBatch(*pickle.loads(encoded))

    def estimate_size(self, value: ElementBatch) -> int:
        # Beam's counters ask for the size of sampled elements. To encode the whole batch would cost more than to
        # process it, so the first element stands for all.
        return len(value.elements) * len(pickle.dumps(value.elements[0], pickle.HIGHEST_PROTOCOL))

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type:
        return ElementBatch

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(ElementBatch, ElementBatchCoder)


def is_batched(elements: Any) -> bool:
    """Return whether a PCollection has batches."""
    return elements.element_type is ElementBatch


class SingleElements(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Emits the elements of batches one by one, each with its own timestamp. Single elements pass unchanged.

    The batches and the elements in them keep their order. Nothing repeats, holds the watermark or has state.
    """

    def __init__(self, element_type: Any = Any) -> None:
        super().__init__()
        self._element_type = element_type

    def expand(self, elements: Any) -> Any:
        """Return a PCollection without batches."""
        if not is_batched(elements):
            return elements
        return elements | "Singles" >> beam.ParDo(_SinglesFn()).with_output_types(self._element_type)


class _SinglesFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    def process(self, batch: ElementBatch) -> Iterator[WindowedValue]:
        for element, time_us in zip(batch.elements, batch.times_us, strict=True):
            yield single(element, time_us)
