"""Panes under a clock that does not stand still while elements are taken in."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.coders import coders
from apache_beam.transforms import trigger as t
from apache_beam.transforms.window import GlobalWindow, GlobalWindows

from penstock.runner.store import StateStore
from penstock.runner.store.cells import Cells, Timers
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.windows.grouping import CompleteGroup
from penstock.runner.windows.panes import Pane, Panes
from penstock.runner.windows.triggers import TriggerTree

SECOND_US = 1_000_000
EVERY_TEN_SECONDS = beam.WindowInto(
    GlobalWindows(),
    trigger=t.Repeatedly(t.AfterProcessingTime(10)),
    accumulation_mode=t.AccumulationMode.DISCARDING,
).windowing
_CODER = coders.GlobalWindowCoder().get_impl()


class Window:
    """The windows of one grouping, epoch after epoch, each with its own readings of the clock."""

    def __init__(self) -> None:
        self._store = StateStore.temporary(0, KEY_GROUPS - 1)
        self.fired: list[int] = []
        """How many values each pane had."""

    def epoch(self, elements: int, clock: Iterator[int]) -> None:
        panes = self._panes(clock)
        if elements:
            window = _CODER.encode_nested(GlobalWindow())
            panes.add_elements(b"k", [CompleteGroup(b"k", window, 0, 0, [b"v"] * elements, elements)])
        panes.advance(0)

    def _panes(self, clock: Iterator[int]) -> Panes:
        return Panes(
            EVERY_TEN_SECONDS,
            TriggerTree(EVERY_TEN_SECONDS.triggerfn.to_runner_api(None), merging=False),
            _CODER,
            Cells(self._store),
            Timers(self._store, 0, KEY_GROUPS - 1),
            self._emit,
            input_us=0,
            output_us=0,
            now_us=lambda: next(clock),
        )

    def set_back(self, back_us: int) -> None:
        self._panes(iter(())).set_back(back_us)

    def _emit(self, pane: Pane) -> None:
        self.fired.append(pane.count)


def ticking(from_us: int) -> Iterator[int]:
    """A clock that is a microsecond further at each look."""
    return iter(range(from_us, from_us + 1000))


def test_a_pane_that_becomes_due_while_an_element_is_added_fires() -> None:
    for microseconds_before in range(5):
        window = Window()
        window.epoch(1, ticking(0))
        window.epoch(1, ticking(10 * SECOND_US - microseconds_before))
        window.epoch(0, ticking(11 * SECOND_US))
        assert window.fired == [2]


def test_a_pane_keeps_its_remaining_delay_when_the_clock_is_set_back() -> None:
    window = Window()
    window.epoch(1, ticking(86_400 * SECOND_US))
    window.set_back(86_390 * SECOND_US)
    window.epoch(0, ticking(19 * SECOND_US))
    assert window.fired == []
    window.epoch(0, ticking(21 * SECOND_US))
    assert window.fired == [1]
