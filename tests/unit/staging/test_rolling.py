"""When the open file of a bucket is closed."""

import pytest

from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import OpenFileCoder
from penstock.io.staging.rolling import MAX_US, RollingPolicy


def block(length: int, event_us: int = 0) -> RecordBlock:
    return RecordBlock.of([(event_us, b"x" * length)])


def test_a_file_is_due_after_its_first_record_not_after_its_last():
    policy = RollingPolicy(after_us=10_000_000, at_bytes=100)
    file = policy.open(now_us=5).with_block(block(10, event_us=1)).with_block(block(10, event_us=2))
    assert file.due_us == 10_000_005


def test_a_policy_without_a_wait_makes_files_due_in_the_past():
    assert RollingPolicy(after_us=0, at_bytes=100).open(now_us=1_700_000_000_000_000).due_us == 0


def test_a_file_is_due_after_one_wait_at_most_if_the_clock_was_set_back():
    policy = RollingPolicy(after_us=10_000_000, at_bytes=100)
    file = policy.open(now_us=86_400_000_000)
    assert policy.due_us(file, now_us=86_403_000_000) == file.due_us
    assert policy.due_us(file, now_us=3_000_000) == 13_000_000


def test_a_file_is_full_at_its_limit_and_not_below():
    policy = RollingPolicy(after_us=0, at_bytes=100)
    file = policy.open(0).with_block(block(99))
    assert not policy.is_full(file)
    assert policy.is_full(file.with_block(block(1)))


def test_a_file_counts_the_records_of_its_blocks():
    file = RollingPolicy(0, 1).open(0).with_block(RecordBlock.of([(1, b"ab"), (2, b"")])).with_block(block(3))
    assert (file.records, file.length) == (3, 5)


def test_a_file_holds_the_watermark_at_its_earliest_event_time_in_any_order_of_arrival():
    file = RollingPolicy(0, 1).open(0)
    for event_us in (50, 40, 60):
        file = file.with_block(block(1, event_us))
    assert file.earliest_us == 40


def test_the_longest_wait_fits_into_a_checkpoint():
    file = RollingPolicy(MAX_US, 1).open(now_us=1_700_000_000_000_000)
    assert OpenFileCoder().decode(OpenFileCoder().encode(file)) == file


@pytest.mark.parametrize(
    ("after_us", "at_bytes", "name"),
    [(-1, 1, "roll_seconds"), (10**300, 1, "roll_seconds"), (0, 0, "roll_bytes")],
)
def test_an_impossible_policy_is_refused_by_the_name_of_the_argument(after_us, at_bytes, name):
    with pytest.raises(ValueError, match=name):
        RollingPolicy(after_us, at_bytes)
