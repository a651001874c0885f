"""The reader counts splits, merges and moves once."""

from __future__ import annotations

from typing import Any

from penstock.io.spanner.metrics import lineage_events


def counted(token: str, record: Any) -> dict[str, int]:
    return {name: count for name, count in lineage_events(token, record).items() if count}


def test_a_split_is_one_split_and_two_partitions(children: Any) -> None:
    record = children(1, ("a", ("p",)), ("b", ("p",)))
    assert counted("p", record) == {"splits": 1, "partitions_announced": 2}


def test_a_single_child_of_a_single_parent_counts_as_one_move(children: Any) -> None:
    assert counted("p", children(1, ("a", ("p",)))) == {"moves": 1, "partitions_announced": 1}


def test_a_merge_is_counted_once_though_every_parent_announces_it(children: Any) -> None:
    record = children(1, ("m", ("p", "q")))
    assert counted("p", record) == {"merges": 1, "partitions_announced": 1}
    assert counted("q", record) == {}


def test_children_of_the_root_are_neither_split_nor_move(children: Any) -> None:
    assert counted("", children(1, ("a", ()), ("b", ()))) == {"partitions_announced": 2}
