"""Partitions of a lineage log: their spans, and what they wait for."""

from __future__ import annotations

from typing import Any

from penstock.telemetry.lineage import PartitionSpan, partition_spans


def event(second: int, kind: str, partition: str, parents: str = "", by: str = "") -> dict[str, Any]:
    time = f"2026-01-31T12:00:{second:02d}.000000000Z"
    return {
        "time": time,
        "event": kind,
        "partition": partition,
        "parents": list(parents),
        "announced_by": by,
    }


def spans(*events: dict[str, Any]) -> dict[str, PartitionSpan]:
    return {each.name: each for each in partition_spans(events)}


def test_a_merged_partition_waits_for_the_parents_that_have_not_announced_it() -> None:
    found = spans(
        event(0, "announced", "a"),
        event(0, "announced", "b"),
        event(5, "announced", "c", "ab", by="a"),
        event(5, "closed", "a"),
    )
    assert found["c"].waits_for == {"b"}
    assert not found["b"].waits_for


def test_a_partition_that_all_parents_have_announced_waits_for_none() -> None:
    found = spans(
        event(5, "announced", "c", "ab", by="a"),
        event(6, "announced", "c", "ab", by="b"),
    )
    assert not found["c"].waits_for
    assert [source for _, source in found["c"].sources] == ["a", "b", "a", "b"]


def test_neither_a_parent_that_has_ended_nor_a_partition_that_has_ended_makes_a_wait() -> None:
    found = spans(
        event(5, "announced", "c", "ab", by="a"),
        event(6, "closed", "b"),
        event(7, "announced", "d", "ce", by="c"),
        event(9, "closed", "d"),
    )
    assert not found["c"].waits_for
    assert not found["d"].waits_for
