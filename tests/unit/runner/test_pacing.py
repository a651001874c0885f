"""Epochs are short while data arrives, and long while none does."""

from __future__ import annotations

import pytest

from penstock.runner.driver.pacing import Pacing


def test_while_data_arrives_a_task_without_data_does_not_delay_the_others() -> None:
    pacing = Pacing(0.5)
    pacing.observe(3)
    assert pacing.idle_seconds <= 0.02


def test_while_no_data_arrives_epochs_have_their_full_length() -> None:
    pacing = Pacing(0.5)
    assert pacing.idle_seconds == 0.5
    pacing.observe(1)
    waits = []
    for _ in range(8):
        pacing.observe(0)
        waits.append(pacing.idle_seconds)
    assert waits == sorted(waits)
    assert waits[-1] == 0.5


@pytest.mark.parametrize("records", [0, 5])
def test_no_epoch_waits_longer_than_the_user_allows(records: int) -> None:
    pacing = Pacing(0.01)
    pacing.observe(records)
    assert pacing.idle_seconds == 0.01


def test_expensive_epochs_always_have_their_full_length() -> None:
    pacing = Pacing(0.5, hurried=False)
    pacing.observe(3)
    assert pacing.idle_seconds == 0.5


def test_tasks_wait_long_after_an_epoch_without_data() -> None:
    pacing = Pacing(0.5)
    assert pacing.quiet_seconds == 0
    pacing.observe(0)
    assert 0.5 < pacing.quiet_seconds < 2, "the watermark is behind by at most 2 s"
    pacing.observe(1)
    assert pacing.quiet_seconds == 0
    pacing.observe(0)
    assert pacing.quiet_seconds > 0.5


def test_a_pipeline_is_quiet_after_a_long_wait_without_data() -> None:
    pacing = Pacing(0.5)
    seen = []
    for records in (1, 0, 0, 0, 1, 0):
        pacing.observe(records)
        seen.append(pacing.is_quiet)
    assert seen == [False, False, True, True, False, False]


def test_who_makes_epochs_short_gets_a_recent_watermark_from_a_quiet_pipeline_too() -> None:
    pacing = Pacing(0.1)
    pacing.observe(0)
    assert pacing.quiet_seconds < 0.5


def test_epochs_that_are_longer_than_a_quiet_wait_stay_as_they_are() -> None:
    pacing = Pacing(5.0)
    pacing.observe(0)
    assert pacing.quiet_seconds == 0


def test_epochs_become_longer_while_a_reader_is_behind() -> None:
    pacing = Pacing(0.5)
    lengths = []
    for _ in range(5):
        lengths.append((pacing.reading_seconds, pacing.catches_up))
        pacing.observe(1_000, is_behind=True)
    assert lengths == [(0.5, False), (1.0, True), (2.0, True), (2.0, True), (2.0, True)]


def test_a_reader_that_has_caught_up_has_short_epochs_at_once() -> None:
    pacing = Pacing(0.5)
    pacing.observe(1_000, is_behind=True)
    pacing.observe(10)
    assert (pacing.reading_seconds, pacing.catches_up) == (0.5, False)
