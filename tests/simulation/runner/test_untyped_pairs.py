"""Pairs without type hints can be grouped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam

from tests.simulation.batch import run_batch

seen: list[Any] = []


def note(key: str, values: Iterable[int]) -> None:
    seen.append((key, sorted(values)))


def test_untyped_pairs_are_grouped_below_a_reshuffle() -> None:
    def build(p: beam.Pipeline) -> None:
        untyped = p | beam.Create([("a", 1), ("b", 2), ("a", 3)]) | beam.Map(lambda pair: pair)
        _ = untyped | beam.Reshuffle() | beam.GroupByKey() | beam.MapTuple(note)

    seen.clear()
    run_batch(build)
    assert sorted(seen) == [("a", [1, 3]), ("b", [2])]
