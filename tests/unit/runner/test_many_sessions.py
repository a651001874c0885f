"""What many sessions of one key cost in an epoch."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.coders import coders
from apache_beam.transforms import trigger as t
from apache_beam.transforms.window import IntervalWindow, Sessions
from apache_beam.utils.timestamp import Timestamp

from penstock.runner.store import StateStore
from penstock.runner.store.cells import Cells, Timers
from penstock.runner.store.keys import KEY_GROUPS, key_group
from penstock.runner.windows import active_windows
from penstock.runner.windows.grouping import CompleteGroup
from penstock.runner.windows.panes import Pane, Panes
from penstock.runner.windows.triggers import TriggerTree

SECOND = 1_000_000
GAP = 10
_CODER = coders.IntervalWindowCoder().get_impl()


class CountingCells(Cells):
    """Counts the bytes of the lists of windows that are read and written."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store)
        self.bytes = 0

    def chunks(self, key_group, key, window, name):
        for chunk in super().chunks(key_group, key, window, name):
            self.bytes += len(chunk) * (name == b"active")
            yield chunk

    def replace(self, key_group, key, window, name, chunk):
        self.bytes += len(chunk) * (name == b"active")
        super().replace(key_group, key, window, name, chunk)


class Epochs:
    """Sessions of some keys, each with one element, in one store."""

    def __init__(self) -> None:
        self.store = StateStore.temporary(0, KEY_GROUPS - 1)
        self.cells = CountingCells(self.store)
        self.panes: list[tuple[bytes, int, int]] = []

    def run(self, sessions: dict[bytes, list[int]], watermark_us: int) -> None:
        """Add elements at these seconds, and advance the watermark."""
        windowing = beam.WindowInto(
            Sessions(GAP),
            trigger=t.AfterWatermark(),
            accumulation_mode=t.AccumulationMode.DISCARDING,
        ).windowing

        def emit(pane: Pane) -> None:
            self.panes.append((pane.key, pane.window.start.micros // SECOND, pane.count))
            assert len(list(pane.values)) == pane.count

        panes = Panes(
            windowing,
            TriggerTree(t.AfterWatermark().to_runner_api(None), merging=True),
            _CODER,
            self.cells,
            Timers(self.store, 0, KEY_GROUPS - 1),
            emit,
            input_us=0,
            output_us=0,
            now_us=lambda: 0,
        )
        for key, seconds in sessions.items():
            groups = []
            for second in seconds:
                window = IntervalWindow(Timestamp(second), Timestamp(second + GAP))
                at = second * SECOND
                groups.append(CompleteGroup(key, _CODER.encode_nested(window), at, at, [b"v"], 1))
            panes.add_elements(key, groups)
        panes.advance(watermark_us)
        panes.release_emitted()


@pytest.mark.parametrize("keys", [1, 3])
def test_the_windows_of_a_key_are_read_and_stored_once_however_many_begin_and_end(keys: int) -> None:
    count = 400
    epochs = Epochs()
    seconds = [1000 * number for number in range(count)]
    sessions = {b"k%d" % key: seconds for key in range(keys)}
    epochs.run(sessions, 0)
    began = epochs.cells.bytes
    assert began < 100 * count * keys
    # Half of the sessions get another element, and all of them end.
    epochs.run({key: [second + 5 for second in seconds[::2]] for key in sessions}, 1000 * count * SECOND)
    assert epochs.cells.bytes - began < 400 * count * keys
    assert sorted(epochs.panes) == sorted(
        (key, second, 2 if number % 2 == 0 else 1)
        for key in sessions
        for number, second in enumerate(seconds)
    )


def test_windows_of_more_keys_than_are_kept_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_windows, "MAX_KEPT", 4)
    epochs = Epochs()
    keys = [b"k%d" % number for number in range(5)]
    epochs.run({key: [0, 100, 200] for key in keys}, 0)
    epochs.run({key: [5, 105] for key in reversed(keys)}, 110 * SECOND)
    epochs.run({key: [205] for key in keys}, 300 * SECOND)
    assert sorted(epochs.panes) == sorted((key, second, 2) for key in keys for second in (0, 100, 200))
    stored = [chunk for key in keys for chunk in epochs.cells.chunks(key_group(key), key, b"", b"active")]
    assert not stored, "windows that have ended may still merge"
