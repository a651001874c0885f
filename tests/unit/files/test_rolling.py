"""When the open file of a lane closes."""

import pytest

from penstock.io.files.rolling import LONGEST_US, OpenFile, OpenFileCoder, RollRule


def test_a_file_is_due_after_its_first_line_not_after_its_last():
    rule = RollRule(after_us=10_000_000, at_bytes=100)
    file = rule.open(now_us=5).with_block(10, event_us=1).with_block(10, event_us=2)
    assert file.due_us == 10_000_005


def test_no_wait_means_due_in_the_past():
    assert RollRule(after_us=0, at_bytes=100).open(now_us=1_700_000_000_000_000).due_us == 0


def test_a_file_is_due_after_one_wait_at_most_when_the_clock_was_set_back():
    rule = RollRule(after_us=10_000_000, at_bytes=100)
    file = rule.open(now_us=86_400_000_000)
    assert rule.due_us(file, now_us=86_403_000_000) == file.due_us
    assert rule.due_us(file, now_us=3_000_000) == 13_000_000


def test_a_file_is_full_at_its_limit_not_below():
    rule = RollRule(after_us=0, at_bytes=100)
    file = rule.open(0).with_block(99, 0)
    assert not rule.is_full(file)
    assert rule.is_full(file.with_block(1, 0))


def test_the_hold_is_the_earliest_event_time_also_when_it_comes_late():
    file = (
        RollRule(0, 1)
        .open(0)
        .with_block(1, event_us=50)
        .with_block(1, event_us=40)
        .with_block(1, event_us=60)
    )
    assert file.earliest_us == 40


def test_the_longest_wait_can_be_kept_in_a_checkpoint():
    file = RollRule(LONGEST_US, 1).open(now_us=1_700_000_000_000_000)
    assert OpenFileCoder().decode(OpenFileCoder().encode(file)) == file


@pytest.mark.parametrize(
    ("after_us", "at_bytes", "name"),
    [(-1, 1, "roll_seconds"), (10**300, 1, "roll_seconds"), (0, 0, "roll_bytes")],
)
def test_a_rule_that_cannot_be_kept_is_refused_by_the_arguments_name(after_us, at_bytes, name):
    with pytest.raises(ValueError, match=name):
        RollRule(after_us, at_bytes)


def test_an_open_file_survives_its_coder():
    file = OpenFile(length=3, earliest_us=-5, due_us=1 << 60)
    assert OpenFileCoder().decode(OpenFileCoder().encode(file)) == file


def test_an_open_file_of_another_version_is_refused_with_the_remedy():
    newer = b"\x02" + OpenFileCoder().encode(OpenFile(1, 2, 3))[1:]
    with pytest.raises(ValueError, match=r"version 2 .*Resume with the Penstock"):
        OpenFileCoder().decode(newer)
