"""The bases of transforms, which share Beam's exception handling."""

from __future__ import annotations

import copy
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.windowed_value import WindowedValue
from typing_extensions import Self

from penstock.batches import ElementBatch, SingleElements, is_batched, single
from penstock.errors import DecodeError, ServiceError
from penstock.helpers import current_helpers
from penstock.io.change_streams.lazy_records import are_lazy


class ElementTransform(beam.PTransform):
    """Applies a function to each element and emits what it returns, an iterable.

    Order: the elements of a bundle keep their order, so events of one key stay in order if they come in order.
    After a crash a bundle may run again and gives the same output. Nothing holds the watermark back, and there is
    no state. Each output element has the timestamp and the windows of its input element. Batches of elements
    (`penstock.batches`) give batches.
    """

    def __init__(
        self,
        process: Callable[[Any], Iterable[Any]],
        output_type: Any,
        *,
        whole: Whole | None = None,
    ) -> None:
        """`whole`: does the same for a whole batch, in less time."""
        super().__init__()
        self._process, self._whole = process, whole
        self._output_type = output_type
        self._handling: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def with_exception_handling(self, *args: Any, **options: Any) -> ElementTransform:
        """Return a copy that sends elements for which the function raises to a second output.

        Arguments and outputs are as in `beam.ParDo.with_exception_handling`: a dead letter is the pair (element,
        (exception class, its text, traceback)). `penstock.transforms.DeadLetters` makes records of them.

        A `ServiceError` fails the bundle, which is repeated: if a schema registry does not answer, that is not the
        fault of an element, and every element would become a dead letter.
        """
        # A copy, as Beam's own `with_exception_handling` makes one: the same transform may be applied twice,
        # once with and once without.
        changed = copy.copy(self)
        changed._handling = (args, options)
        return changed

    def outputs(self, element: Any) -> Iterable[Any]:
        """Return the outputs of one element, outside of a pipeline."""
        return self._process(element)

    def expand(self, pcoll: beam.PCollection[Any]) -> Any:
        """Apply the function; with exception handling the result has two outputs."""
        name = f"{type(self).__name__}Fn"
        if is_batched(pcoll):
            # `((), {})` is a call without options. Batches know only that form.
            if self._handling in (None, ((), {})):
                return self._apply_to_batches(pcoll, name)
            pcoll |= (
                SingleElements()
            )  # options of Beam, such as `partial`, are about calls for single elements
        if self._handling is None:
            return pcoll | name >> beam.FlatMap(self._process).with_output_types(self._output_type)
        args, options = self._handling
        # `Any`, because the wrapper also returns failures. `RaiseServiceErrors` declares the type.
        apply: Any = beam.FlatMap(_ServiceErrorsAsElements(self._process)).with_output_types(Any)
        result = pcoll | name >> apply.with_exception_handling(*args, **options)
        # Raised one step later, outside of Beam's handling, so the error fails the bundle as it would without
        # handling.
        raising = "RaiseServiceErrors" >> beam.Map(_raise_service_error).with_output_types(self._output_type)
        if isinstance(result, beam.PCollection):  # with an `error_handler` there is one output
            return result | raising
        good, *rest = result
        return (good | raising, *rest)

    def _apply_to_batches(self, batches: beam.PCollection[Any], name: str) -> Any:
        if self._handling is None:
            fn = _BatchFn(self._process, self._whole)
            return batches | name >> beam.ParDo(fn).with_output_types(ElementBatch)
        fn = _HandlingBatchFn(self._process, self._whole)
        outputs = batches | name >> beam.ParDo(fn).with_outputs(_FAILED, main="good")
        # Set by hand: `is_batched` of the next step looks at this type.
        outputs["good"].element_type = ElementBatch
        return outputs["good"], outputs[_FAILED]


Whole = Callable[[list[Any], list[int]], tuple[list[Any], list[int]]]
"""From the elements of a batch and their event times, in µs since 1970, to the elements and times of its output."""

_FAILED = "failed"


def _output(elements: list[Any], times_us: list[int]) -> Iterator[WindowedValue]:
    # A bundle without outputs emits no empty batch: the next step would pay for nothing.
    if elements:
        yield ElementBatch(elements, times_us).windowed()


class _BatchFn(beam.DoFn):
    """Applies the function to each element of a batch; emits a batch, or nothing if no element gave an output.

    Helpers (`penstock.helpers`) may apply `whole` to batches whose elements are cheap to send. The outputs keep the
    order of the batches: those behind a batch that a helper has wait for it, at most until the bundle ends.
    """

    def __init__(
        self,
        process: Callable[[Any], Iterable[Any]],
        whole: Whole | None = None,
    ) -> None:
        self._process, self._whole = process, whole
        self._waiting: deque[_Waiting] = deque()

    def start_bundle(self) -> None:
        self._waiting.clear()  # a bundle that failed may have left some

    def process(self, batch: ElementBatch) -> Iterator[Any]:
        sent = self._sent(batch)
        if sent is None and not self._waiting:
            yield from self._outputs(batch)
            return
        self._waiting.append(_Waiting(batch, list(self._outputs(batch)) if sent is None else sent))
        yield from self._ready(_MAX_WAITING)

    def _sent(self, batch: ElementBatch) -> Future[Any] | None:
        """Return the output of a batch that a helper makes; None: it is to be made here."""
        whole, helpers = self._whole, current_helpers()
        if (
            whole is None
            or helpers is None
            or len(batch.times_us) < _MIN_SENT
            or not are_lazy(batch.elements)
        ):
            return None
        return helpers.submit(whole, *batch)

    def finish_bundle(self) -> Iterator[Any]:
        return self._ready(0)

    def _ready(self, most: int) -> Iterator[Any]:
        """Yield outputs in order until the next one is not made; wait while more than `most` batches wait."""
        waiting = self._waiting
        while waiting and (len(waiting) > most or waiting[0].is_made):
            yield from self._made(waiting.popleft())

    def _made(self, waiting: _Waiting) -> Iterable[Any]:
        if isinstance(waiting.made, list):
            return waiting.made
        try:
            return _output(*waiting.made.result())
        except Exception:
            # Here the error is raised or handled as if there were no helpers.
            return self._outputs(waiting.batch)

    def _outputs(self, batch: ElementBatch) -> Iterator[Any]:
        if self._whole is not None:
            yield from _output(*self._whole(*batch))
            return
        elements: list[Any] = []
        times_us: list[int] = []
        for element, time_us in zip(batch.elements, batch.times_us, strict=True):
            for output in self._process(element):
                elements.append(output)
                times_us.append(time_us)
        yield from _output(elements, times_us)


_MIN_SENT = 100
"""Elements of a batch that is worth to be sent."""
_MAX_WAITING = 16
"""Batches that wait for helpers, or behind those that do."""


class _Waiting(NamedTuple):
    """A batch, and its outputs: the future of what `whole` returns, or a list if they are made."""

    batch: ElementBatch
    made: Future[Any] | list[Any]

    @property
    def is_made(self) -> bool:
        return isinstance(self.made, list) or self.made.done()


class _HandlingBatchFn(_BatchFn):
    """The same with a second output for the elements for which the function raises; the others stay in their batch."""

    def _outputs(self, batch: ElementBatch) -> Iterator[Any]:
        if self._whole is not None:
            try:
                whole = self._whole(*batch)
            except Exception as error:
                if _fails_the_bundle(error):
                    raise
            else:
                yield from _output(*whole)
                return
        # One by one, so that only the elements are left out for which the function raises.
        elements: list[Any] = []
        times_us: list[int] = []
        for element, time_us in zip(batch.elements, batch.times_us, strict=True):
            try:
                # A list, because an iterator would raise after its first outputs have been added.
                outputs = list(self._process(element))
            except Exception as error:
                # The service is the cause, so the same element may succeed when the bundle runs again.
                if _fails_the_bundle(error):
                    raise
                yield TaggedOutput(_FAILED, single(_dead_letter(element, error), time_us))
                continue
            elements += outputs
            times_us += [time_us] * len(outputs)
        yield from _output(elements, times_us)


def _dead_letter(element: Any, error: Exception) -> Any:
    """Return what Beam's `with_exception_handling` emits for an element (2.77, `_ExceptionHandlingWrapperDoFn`)."""
    return element, (type(error), repr(error), traceback.format_exception(error))


def _fails_the_bundle(error: Exception) -> bool:
    """Return whether an error is no fault of the element; a `DecodeError` is the element that cannot be decoded."""
    # `DecodeError` is a `ServiceError`, because the bytes come from the service, but only this record is
    # affected.
    return isinstance(error, ServiceError) and not isinstance(error, DecodeError)


class StatefulTransform(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Base of transforms with state and timers, whose first step looks at one element at a time.

    Beam's exception handling covers no timers. It is applied to the first step, which checks each element and finds its
    key; so no element that passes it makes a later step fail.
    """

    _handling: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def with_exception_handling(self, *args: Any, **options: Any) -> Self:
        """Return a copy that sends elements which its first step rejects to a further, last output.

        Arguments and the form of dead letters are as in `ElementTransform.with_exception_handling`.
        """
        changed = copy.copy(self)
        changed._handling = (args, options)
        return changed

    def _enter(
        self, pcoll: Any, name: str, first: beam.ParDo, output_type: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Apply the first step; return its output, and a tuple of the output for dead letters, if there is one."""
        first = first.with_output_types(output_type)
        # State needs one key for each element, and a batch has elements of many keys.
        if is_batched(pcoll):
            pcoll |= f"SingleElements({name})" >> SingleElements()
        if self._handling is None:
            return pcoll | name >> first, ()
        args, options = self._handling
        result = pcoll | name >> first.with_exception_handling(*args, **options)
        if isinstance(result, beam.PCollection):  # with an `error_handler` there is one output
            return result, ()
        good, *rest = result
        return good, tuple(rest)


class _ServiceErrorsAsElements:
    """Lets a `ServiceError` pass Beam's exception handling, which can name classes to catch but none to leave out."""

    def __init__(self, process: Callable[[Any], Iterable[Any]]) -> None:
        self._process = process

    def __call__(self, element: Any) -> Iterable[Any]:
        try:
            # A list, because an iterator would raise outside of this block.
            return list(self._process(element))
        except ServiceError as error:
            if not _fails_the_bundle(error):
                raise
            return [_Failure(error)]


class _Failure(NamedTuple):
    error: ServiceError


def _raise_service_error(element: Any) -> Any:
    if isinstance(element, _Failure):
        raise element.error
    return element
