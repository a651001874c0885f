"""The base of transforms that look at one element at a time: they share Beam's exception handling."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam


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
        """
        changed = copy.copy(self)
        changed._handling = (args, options)
        return changed

    def expand(self, pcoll: beam.PCollection[Any]) -> Any:
        """Apply the function; with exception handling the result has two outputs."""
        apply: Any = beam.FlatMap(self._process).with_output_types(self._output_type)
        if self._handling is not None:
            args, options = self._handling
            apply = apply.with_exception_handling(*args, **options)
        return pcoll | f"{type(self).__name__}Fn" >> apply
