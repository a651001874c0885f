"""Publications go to the tasks that have time for them, and stay where they were if that saves little."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.driver.publication_shares import PublicationShares
from penstock.runner.tasks.epoch import TaskReport

SECONDS = st.floats(0, 100)


def measured(partitions: int, *, reading: float, publication: float) -> PublicationShares:
    """Shares of a pipeline in which the reader reads, and each publication takes, this many seconds."""
    shares = PublicationShares(partitions)
    observe(shares, reading, publication)
    return shares


def observe(shares: PublicationShares, reading: float, publication: float) -> None:
    reports = [
        TaskReport("a", reading_seconds=reading, publishing_seconds=publication),
        TaskReport("b", publishing_seconds=publication),
    ]
    for _ in range(20):  # so that older times do not count
        shares.observe(reports, 2)


def test_before_anything_is_measured_all_inputs_publish_and_the_one_that_reads_comes_last() -> None:
    assert PublicationShares(3).deal(4, {0}) == (2, 1, 0, 2)


def test_while_one_task_reads_a_backlog_the_others_publish() -> None:
    shares = measured(3, reading=2.0, publication=0.4)
    assert Counter(shares.deal(8, {0})) == {2: 4, 1: 4}


def test_a_task_that_reads_for_a_short_time_publishes_too_where_the_target_is_slow() -> None:
    shares = measured(2, reading=0.5, publication=1.0)
    assert Counter(shares.deal(4, {0})) == {0: 2, 1: 2}


def test_one_task_does_everything() -> None:
    assert measured(1, reading=2.0, publication=0.4).deal(3, {0}) == (0, 0, 0)


def test_a_publication_stays_with_its_connection_while_times_change_a_little() -> None:
    shares = measured(2, reading=2.0, publication=0.6)
    before = shares.deal(4, {0})
    observe(shares, 1.7, 0.62)
    assert measured(2, reading=1.7, publication=0.62).deal(4, {0}) != before, (
        "a new deal would be another one"
    )
    assert shares.deal(4, {0}) == before
    observe(shares, 0.1, 0.6)
    assert Counter(shares.deal(4, {0})) == {0: 2, 1: 2}, "the last deal would take twice as long"


@given(st.integers(1, 5), st.integers(0, 12), st.sets(st.integers(0, 4)), SECONDS, SECONDS)
def test_an_epoch_is_at_most_one_publication_longer_than_an_even_share(
    partitions: int, publications: int, readers: set[int], reading: float, publication: float
) -> None:
    readers = {index for index in readers if index < partitions}
    shares = measured(partitions, reading=reading, publication=publication)
    inputs = shares.deal(publications, readers)
    assert len(inputs) == publications
    assert set(inputs) <= set(range(partitions))
    loads = [reading if index in readers else 0.0 for index in range(partitions)]
    even = max(reading if readers else 0.0, (sum(loads) + publications * publication) / partitions)
    for index in inputs:
        loads[index] += publication
    assert max(loads) <= even + publication + 0.01
