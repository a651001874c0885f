"""`Replay`: dead letters that enter a pipeline again, each at the step that could not process it.

The pipeline is the job's own, without its source. So the letters pass the same steps as at first, but no step twice:
a masked column is not masked again. Each event keeps its version, so a replica sink drops it if its target has a newer
one. Letters of changes that the job does not read any more are left out: see `penstock.pipelines.letter_selection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.pipelines.letter_selection import LetterSelection
from penstock.transforms.dead_letters import DeadLetter

_BEFORE_WHOLE_ROWS = "ToChangeEvents"
"""The step before MaterializeRows, whose state a replay does not have."""
EVERY_LETTER = LetterSelection()


class Replay:
    """Dead letters by step. `attempt` is the number of this attempt, for letters that fail again.

    `selection`: the letters that are written. `left_out`: how many are not.

    Raises:
        UsageError: a letter cannot be processed again; the message says why.
    """

    def __init__(
        self,
        letters: Iterable[DeadLetter],
        *,
        materialize_rows: bool = False,
        selection: LetterSelection = EVERY_LETTER,
    ) -> None:
        self._elements: dict[str, list[Any]] = {}
        self._selection = selection
        self.attempt = 1
        self.left_out = 0
        for letter in letters:
            if reason := refusal(letter, materialize_rows=materialize_rows):
                raise UsageError(f"a dead letter cannot be replayed: {reason}")
            element = letter.element
            self._elements.setdefault(letter.step, []).append(element)
            self.left_out += not selection.has(element)
            self.attempt = max(self.attempt, letter.attempt + 1)

    def into(self, events: Any, step: str) -> Any:
        """Return the input of a step with its letters."""
        elements = self._elements.get(step)
        if not elements:
            return events
        again = (
            events.pipeline
            | f"Letters({step})" >> beam.Create(elements)
            # All letters are created, and selected behind it: a replay that continues after an edit of the job keeps
            # its steps.
            | f"Times({step})"
            >> beam.FlatMap(partial(_at_its_time, self._selection)).with_output_types(type(elements[0]))
        )
        return (events, again) | f"With({step})" >> beam.Flatten()


def refusal(letter: DeadLetter, *, materialize_rows: bool = False) -> str:
    """Return why a letter cannot be processed again; empty if it can."""
    if not letter.step:
        return "its step is unknown: the source could not decode it, or an older version wrote it"
    if materialize_rows and letter.step == _BEFORE_WHOLE_ROWS:
        return "it failed before MaterializeRows, and a replay does not have the rows of the pipeline"
    return ""


class NoRecords(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """In place of a source: no records; with `divided` also no records that cannot be decoded."""

    def __init__(self, *, divided: bool) -> None:
        super().__init__()
        self._divided = divided

    def expand(self, begin: Any) -> Any:
        """Return one or two empty collections."""
        records = begin.pipeline | "None" >> beam.Create([])
        return (records, begin.pipeline | "NoneUndecodable" >> beam.Create([])) if self._divided else records


def _at_its_time(selection: LetterSelection, element: Any) -> Iterator[Any]:
    """Yield a selected element with the commit time as its event time, as its source gives it."""
    if not selection.has(element):
        return
    names = ("timestamp",) if isinstance(element, ChangeEvent) else ("commit_timestamp", "event_timestamp")
    times = (getattr(element, name, None) for name in names)
    nanoseconds = next((each for each in times if each), 0)
    yield TimestampedValue(element, nanoseconds / 1_000_000_000)
