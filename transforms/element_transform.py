"""The bases of transforms, which share Beam's exception handling."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import apache_beam as beam
from typing_extensions import Self

from penstock.errors import DecodeError, ServiceError


class ElementTransform(beam.PTransform):
    """Applies a function to each element and emits what it returns, an iterable.

    Order: the elements of a bundle keep their order, so events of one key stay in order if they come in order.
    After a crash a bundle may run again and gives the same output. Nothing holds the watermark back, and there is
    no state. Each output element has the timestamp and the windows of its input element.
    """

    def __init__(self, process: Callable[[Any], Iterable[Any]], output_type: Any) -> None:
        super().__init__()
        self._process = process
        self._output_type = output_type
        self._handling: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def with_exception_handling(self, *args: Any, **options: Any) -> ElementTransform:
        """Return a copy that sends elements for which the function raises to a second output.

        Arguments and outputs are those of `beam.ParDo.with_exception_handling`: a dead letter is the pair (element,
        (exception class, its text, traceback)). `penstock.transforms.DeadLetters` makes records of them.

        A `ServiceError` fails the bundle, which is repeated: if a schema registry does not answer, that is not the
        fault of an element, and every element would become a dead letter.
        """
        changed = copy.copy(self)
        changed._handling = (args, options)
        return changed

    def expand(self, pcoll: beam.PCollection[Any]) -> Any:
        """Apply the function; with exception handling the result has two outputs."""
        name = f"{type(self).__name__}Fn"
        if self._handling is None:
            return pcoll | name >> beam.FlatMap(self._process).with_output_types(self._output_type)
        args, options = self._handling
        apply: Any = beam.FlatMap(_ServiceErrorsAsElements(self._process)).with_output_types(Any)
        result = pcoll | name >> apply.with_exception_handling(*args, **options)
        raising = "RaiseServiceErrors" >> beam.Map(_raise_service_error).with_output_types(self._output_type)
        if isinstance(result, beam.PCollection):  # with an `error_handler` there is one output
            return result | raising
        good, *rest = result
        return (good | raising, *rest)


class StatefulTransform(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Base of transforms with state and timers, whose first step looks at one element at a time.

    Beam's exception handling covers no timers. It is applied to the first step, which checks each element and finds its
    key; so no element that passes it makes a later step fail.
    """

    _handling: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def with_exception_handling(self, *args: Any, **options: Any) -> Self:
        """Return a copy that sends elements which its first step rejects to a further, last output.

        Arguments and the form of dead letters are those of `ElementTransform.with_exception_handling`.
        """
        changed = copy.copy(self)
        changed._handling = (args, options)
        return changed

    def _enter(
        self, pcoll: Any, name: str, first: beam.ParDo, output_type: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Apply the first step; return its output, and a tuple of the output for dead letters, if there is one."""
        first = first.with_output_types(output_type)
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
        except DecodeError:  # the element is what cannot be decoded
            raise
        except ServiceError as error:
            return [_Failure(error)]


class _Failure(NamedTuple):
    error: ServiceError


def _raise_service_error(element: Any) -> Any:
    if isinstance(element, _Failure):
        raise element.error
    return element
