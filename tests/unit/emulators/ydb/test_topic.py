"""Topics of the YDB test service keep YDB's rules about keys, offsets, times and consumers."""

from __future__ import annotations

import pytest

from penstock.transforms.formats.ydb_position import partition_of
from penstock_emulators.ydb.topic import KEY_SPACE, Message, Topic, TopicError, hash_of


def message(written_at: int = 0) -> Message:
    return Message(b"{}", written_at, written_at)


def test_partition_of_a_key_is_that_of_ydb() -> None:
    """The slices of the topic agree with the formula of YDB's source code, which our format has on its own."""
    topic = Topic("/t", partitions=5)
    for number in range(200):
        key = b'[%d,"k"]' % number
        assert topic.partition_for(hash_of(key)).number == partition_of(key, 5)


def test_split_and_merge_keep_the_hashes_and_name_parents_and_children() -> None:
    topic = Topic("/t", partitions=2)
    low, high = topic.split(0)
    child = topic.merge(high, 1)
    assert [(each.number, each.low < each.high) for each in topic.active] == [(low, True), (child, True)]
    assert sum(each.high - each.low for each in topic.active) == KEY_SPACE
    assert topic.partitions[child].parents == (high, 1)
    assert topic.adjacent(high) == (1,)
    assert topic.adjacent(0) == (), "the parents of a split have no other parents beside them"
    with pytest.raises(TopicError, match="inactive"):
        topic.append(0, message())
    with pytest.raises(TopicError, match="neighbours"):
        Topic("/t", partitions=3).merge(0, 2)


def test_offsets_stay_when_retention_deletes_messages() -> None:
    topic = Topic("/t", retention_seconds=10)
    for at in (1, 5, 20):
        topic.append(0, message(at * 10**9))
    topic.expire(16 * 10**9)
    partition = topic.partitions[0]
    assert (partition.first, partition.end) == (2, 3)
    assert partition.message(2).written_at == 20 * 10**9
    topic.trim(0, 99)
    assert (partition.first, partition.end) == (3, 3)


def test_times_of_writing_never_fall_within_a_partition() -> None:
    topic = Topic("/t")
    topic.append(0, message(5))
    topic.append(0, message(3))
    assert topic.partitions[0].message(1).written_at == 5


def test_only_a_consumer_commits_and_only_what_exists() -> None:
    topic = Topic("/t")
    topic.append(0, message())
    with pytest.raises(TopicError, match="no consumer"):
        topic.commit("c", 0, 1)
    topic.consumers["c"] = {}
    topic.commit("c", 0, 1)
    assert topic.committed("c", 0) == 1
    for offset in (2, -1):
        with pytest.raises(TopicError, match="ends at 1"):
            topic.commit("c", 0, offset)
