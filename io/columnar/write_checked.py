"""`WriteCheckedRows`: the base of sinks whose rows have columns, with an error output for rows that do not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from typing_extensions import Self

from penstock.datasets import ReadTable
from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent
from penstock.io.columnar.check import CheckRows
from penstock.io.columnar.table_rows import Mode
from penstock.io.staging.dead_letter_limit import check_limit, stop_at_refused
from penstock.io.staging.preview import Preview
from penstock.io.staging.publish_epochs import PublishEpochs
from penstock.tables import TableSelection

if TYPE_CHECKING:
    from penstock.io.columnar.row_runs import EventRows


class WriteCheckedRows(beam.PTransform):
    """Applies `write` to the change events that `CheckRows` lets pass. `target` names the target in messages.

    `always`: whether events are checked also without an error output. `rows`, `layout`: see `CheckRows`.
    """

    def __init__(
        self,
        target: str,
        label: str,
        write: beam.PTransform,
        mode: Mode = "log",
        *,
        always: bool = True,
        rows: EventRows | None = None,
        layout: Layout = "events",
    ) -> None:
        super().__init__()
        self.rows, self._rows_layout = rows, layout
        # The check makes the rows.
        self._always = always or rows is not None
        self._target, self._write_label, self._write, self._rows_mode = target, label, write, mode
        self._divides = False
        self._max_dead_letters: int | None = None

    def with_exception_handling(self, *, max_dead_letters: int | None = None) -> Self:
        """Return a copy with a second output: the `RefusedEvent`s that the target can never hold (`CheckRows`).

        Without it, the first of them fails the epoch before its commit. With `max_dead_letters` the pipeline fails when
        the sink has had this many since the checkpoint was created.
        """
        check_limit(max_dead_letters)
        # As Beam's `with_exception_handling`: the transform itself stays as it is.
        changed = copy.copy(self)
        changed._divides, changed._max_dead_letters = True, max_dead_letters
        return changed

    def selecting(self, selection: TableSelection) -> Self:
        """Return a copy that leaves out the events of other tables, also those that are staged already.

        Files are written before their commit, so a sink of files has nothing to leave out.
        """
        changed = copy.copy(self)
        if isinstance(self._write, PublishEpochs):
            changed._write = self._write.selecting(selection)
        return changed

    def reading(self, tables: Callable[[], Sequence[ReadTable]]) -> Self:
        """Return a copy that is checked before the start for the tables of a source; see `PublishEpochs.reading`."""
        changed = copy.copy(self)
        if isinstance(self._write, PublishEpochs):
            changed._write = self._write.reading(tables)
        return changed

    @property
    def preview(self) -> Preview:
        """The record or row that the sink writes for one event; see `penstock.io.staging.preview`."""
        preview: Preview = self._write.preview
        return preview

    @property
    def target(self) -> Any:
        """The configuration of the target."""
        return self._write.target

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        check = CheckRows(
            self._target, self._rows_mode, divides=self._divides, rows=self.rows, layout=self._rows_layout
        )
        if not self._divides:
            # `always` is False where the write itself finds such a row before the commit.
            return (events | check if self._always else events) | self._write_label >> self._write
        fitting, refused = events | check
        if self._max_dead_letters is not None:
            refused |= "Limit" >> stop_at_refused(self._max_dead_letters, self._target)
        return fitting | self._write_label >> self._write, refused

    def display_data(self) -> dict[str, Any]:
        return dict(self._write.display_data())
