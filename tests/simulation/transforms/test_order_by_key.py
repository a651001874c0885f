"""`OrderByKey` over streams in which events overtake each other."""

from __future__ import annotations

import random

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.transforms import OrderByKey
from penstock.transforms.release import release_time
from tests.simulation.transforms.scripts import (
    emitted,
    emitted_in_batch,
    event,
    live_cells,
    script,
    shuffled_with_lag,
)


def times(found: list[tuple[ChangeEvent, int]]) -> list[tuple[int, int]]:
    """Return (commit time, emitted at), both in microseconds."""
    return [(each.timestamp // 1000, at) for each, at in found]


def test_an_event_is_emitted_only_when_the_watermark_has_passed_its_microsecond() -> None:
    """At watermark 5.000 the event of 5.0001 may still come, so the event of 5.0003 has to wait."""
    steps = [[event(1, 5_000_300)], 5_000, [event(1, 5_000_100)], 5_001]
    assert times(emitted(OrderByKey(), steps)) == [(5_000_100, 5_001_000), (5_000_300, 5_001_000)]


def test_events_at_one_millisecond_wait_for_the_watermark_behind_it() -> None:
    steps = [[event(1, 5_000_000, sequence=2)], 5_000, [event(1, 5_000_000, sequence=1)], 6_000]
    assert [each.version.sequence for each, _ in emitted(OrderByKey(), steps)] == ["00000001", "00000002"]


def test_a_jump_of_the_watermark_emits_each_event_at_its_own_time() -> None:
    steps = [[event(1, 3_000_000), event(1, 1_000_000), event(1, 2_000_000)]]
    assert times(emitted(OrderByKey(), steps)) == [
        (1_000_000, 1_001_000),
        (2_000_000, 2_001_000),
        (3_000_000, 3_001_000),
    ]


@pytest.mark.long_cases("3", "4", "5", seconds=5)
@pytest.mark.parametrize("seed", range(6))
def test_each_key_is_in_version_order_and_no_event_is_lost_late_or_doubled(seed: int) -> None:
    rng = random.Random(seed)
    events = [event(rng.randrange(4), 1_000_000 + 700 * n, sequence=n) for n in range(60)]
    found = emitted(OrderByKey(), shuffled_with_lag(events, rng, lag_ms=12))
    assert sorted(each.version for each, _ in found) == [each.version for each in events]
    for key in range(4):
        versions = [each.version for each, _ in found if each.key == {"Id": key}]
        assert versions == sorted(versions)
    assert all(each.timestamp // 1000 < at <= each.timestamp // 1000 + 1000 for each, at in found)


def test_a_batch_on_beams_own_runner_is_in_version_order() -> None:
    events = [event(n % 3, 1_000_000 + 1000 * n) for n in range(30)]
    random.Random(1).shuffle(events)
    found = emitted_in_batch(OrderByKey(), events)
    assert len(found) == 30
    for key in range(3):
        versions = [each.version for each, _ in found if each.key == {"Id": key}]
        assert versions == sorted(versions)


def test_the_buffer_is_empty_when_the_watermark_has_passed_the_events() -> None:
    cells = live_cells(OrderByKey(), [[event(1, 1_000_000), event(2, 2_000_000)], 1_500, 3_000, 4_000, 5_000])
    assert max(cells) > 0
    assert cells[-1] == 0


def test_windows_before_it_are_refused() -> None:
    with pytest.raises(UsageError, match="apply WindowInto after it"):
        _ = beam.Pipeline() | script([]) | beam.WindowInto(FixedWindows(1)) | OrderByKey()


def test_the_release_time_is_the_next_whole_millisecond() -> None:
    from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

    for micros, due in ((0, 1000), (999, 1000), (1000, 2000), (-1, 0), (-1000, 0)):
        assert release_time(Timestamp(micros=micros)).micros == due
    assert release_time(MAX_TIMESTAMP) < MAX_TIMESTAMP
