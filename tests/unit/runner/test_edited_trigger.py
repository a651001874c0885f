"""A window that a checkpoint holds, under a program with another trigger."""

from __future__ import annotations

from collections.abc import Callable

import apache_beam as beam
import pytest
from apache_beam.coders import coders
from apache_beam.transforms import trigger as t
from apache_beam.transforms.window import GlobalWindow, GlobalWindows

from penstock.runner.store import StateStore
from penstock.runner.store.cells import Cells, Timers
from penstock.runner.store.keys import KEY_GROUPS
from penstock.runner.windows.grouping import CompleteGroup
from penstock.runner.windows.panes import Panes
from penstock.runner.windows.triggers import TriggerTree

NOW_US = 1_700_000_000_000_000
_CODER = coders.GlobalWindowCoder().get_impl()

Epoch = Callable[[t.TriggerFn, int], list[int]]


@pytest.fixture
def epoch() -> Epoch:
    """Return a function that runs an epoch under a trigger: it takes the number of elements that arrive.

    It returns how many values each pane has.
    """
    store = StateStore.temporary(0, KEY_GROUPS - 1)

    def run(trigger: t.TriggerFn, elements: int) -> list[int]:
        windowing = beam.WindowInto(
            GlobalWindows(), trigger=trigger, accumulation_mode=t.AccumulationMode.DISCARDING
        ).windowing
        tree = TriggerTree(trigger.to_runner_api(None), merging=False)
        counts: list[int] = []
        panes = Panes(
            windowing,
            tree,
            _CODER,
            Cells(store),
            Timers(store, 0, KEY_GROUPS - 1),
            lambda pane: counts.append(pane.count),
            input_us=0,
            output_us=0,
            now_us=lambda: NOW_US,
        )
        window = _CODER.encode_nested(GlobalWindow())
        panes.add_elements(b"k", [CompleteGroup(b"k", window, 0, 0, [b"v"] * elements, elements)])
        panes.advance(0)
        panes.release_emitted()
        return counts

    return run


def test_a_trigger_with_a_longer_count_counts_on(epoch: Epoch) -> None:
    assert epoch(t.Repeatedly(t.AfterCount(5)), 4) == []
    assert epoch(t.Repeatedly(t.AfterCount(8)), 3) == []
    assert epoch(t.Repeatedly(t.AfterCount(8)), 1) == [8]


def test_a_count_is_not_read_as_a_time(epoch: Epoch) -> None:
    assert epoch(t.Repeatedly(t.AfterCount(5)), 4) == []
    assert epoch(t.Repeatedly(t.AfterProcessingTime(10)), 1) == []


def test_a_time_is_not_read_as_a_count_and_stored_elements_count(epoch: Epoch) -> None:
    assert epoch(t.Repeatedly(t.AfterProcessingTime(10)), 4) == []
    assert epoch(t.Repeatedly(t.AfterCount(8)), 3) == []
    assert epoch(t.Repeatedly(t.AfterCount(8)), 1) == [8]


def test_a_finished_subtrigger_does_not_finish_another_one(epoch: Epoch) -> None:
    assert epoch(t.AfterEach(t.AfterCount(2), t.Repeatedly(t.AfterCount(9))), 2) == [2]
    assert epoch(t.Repeatedly(t.AfterCount(3)), 3) == [3]
