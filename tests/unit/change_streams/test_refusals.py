"""A partition that the service refuses for long, while it answers others."""

from __future__ import annotations

import pytest

from penstock.io.change_streams.metrics import REFUSED_PARTITIONS, REFUSED_SECONDS, ReaderMetrics
from penstock.io.change_streams.refusals import Refusals


class Told:
    """Refusals with a clock that is moved by hand, and what they warned of."""

    def __init__(self) -> None:
        self.now = 100.0
        self.warnings: list[str] = []
        self.refusals = Refusals("Bigtable", lambda: self.now, self.warnings.append)

    def fail(self, partition: str = "a", seconds: int = 1) -> None:
        for _ in range(seconds):
            self.refusals.failed(partition, f"partition {partition}", "PERMISSION_DENIED", 60)
            self.now += 1


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_partition_that_is_refused_alone_for_long_gets_a_warning(told: Told) -> None:
    told.fail(seconds=60)
    assert told.warnings == []
    told.fail()
    assert told.warnings == [
        "Bigtable has refused partition a for 60 s, and answers others. Its changes and the watermark wait for it; "
        "the reader keeps trying. The last answer: PERMISSION_DENIED"
    ]


def test_the_warning_comes_again_each_time_the_refusal_has_lasted_twice_as_long(told: Told) -> None:
    told.fail(seconds=500)
    assert [warning.split(" for ")[1].split(" s")[0] for warning in told.warnings] == [
        "60",
        "120",
        "240",
        "480",
    ]


def test_an_answer_ends_the_refusal(told: Told) -> None:
    told.fail(seconds=59)
    told.refusals.answered("a")
    told.fail(seconds=59)
    assert told.warnings == []


def test_each_partition_is_counted_separately(told: Told) -> None:
    for _ in range(40):
        told.fail("a")
        told.fail("b")
    told.refusals.answered("b")
    assert [warning.split()[4] for warning in told.warnings] == ["a", "b"]


def test_a_partition_that_came_back_from_another_worker_is_counted_from_its_return(told: Told) -> None:
    told.fail("a", seconds=30)
    told.now += 121
    told.fail("a", seconds=30)
    assert told.warnings == []


def test_the_gauges_show_refusals_until_one_report_after_their_end(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An earlier test of this process may have had refusals, whose end is reported once.
    monkeypatch.setattr("penstock.io.change_streams.metrics._LAST_REPORT.refused", False)
    metrics = ReaderMetrics(None)  # type: ignore[arg-type]
    assert REFUSED_PARTITIONS not in metrics.gauges((0, 0.0))
    told.refusals.failed("p", "partition p", "no", 60)
    told.now += 30
    told.refusals.failed("p", "partition p", "no", 60)
    assert told.refusals.current() == (1, 30.0)
    found = metrics.gauges(told.refusals.current())
    assert (found[REFUSED_PARTITIONS], found[REFUSED_SECONDS]) == (1, 30)
    told.refusals.answered("p")
    assert metrics.gauges(told.refusals.current())[REFUSED_PARTITIONS] == 0
    assert REFUSED_PARTITIONS not in metrics.gauges((0, 0.0)), "another worker's refusals stay visible"
