"""Beam's worker keeps few objects for keys, and no state is lost when it drops them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.transforms import userstate

from penstock.runner.harness import bounded_caches
from tests.simulation.batch import run_batch

KEYS = 50


class CountTwiceFn(beam.DoFn):
    """Counts the elements of a key in two states, and emits the counts with the last element."""

    ONE = userstate.CombiningValueStateSpec("one", VarIntCoder(), beam.combiners.CountCombineFn())
    BAG = userstate.BagStateSpec("bag", VarIntCoder())

    def process(
        self,
        element: tuple[int, int],
        one: Any = beam.DoFn.StateParam(ONE),
        bag: Any = beam.DoFn.StateParam(BAG),
    ) -> Iterator[tuple[int, int, list[int]]]:
        one.add(1)
        bag.add(element[1])
        if element[1] == 3:
            yield element[0], one.read(), sorted(bag.read())


def test_states_of_many_keys_are_written_before_the_bundle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    class Watched(bounded_caches._BoundedStates):
        def get_state(self, *args: Any) -> Any:
            kept.append(len(self._all_states))
            return super().get_state(*args)

    monkeypatch.setattr(bounded_caches, "MAX_STATES", 5)
    monkeypatch.setattr(bounded_caches, "_BoundedStates", Watched)
    found: list[Any] = []
    monkeypatch.setattr(f"{__name__}.FOUND", found)

    def build(p: beam.Pipeline) -> None:
        pairs = [(key, n) for n in range(4) for key in range(KEYS)]
        typed = p | beam.Create(pairs) | beam.Map(lambda pair: pair).with_output_types(tuple[int, int])
        _ = typed | beam.ParDo(CountTwiceFn()) | beam.Map(_keep)

    run_batch(build)
    assert sorted(found) == [(key, 4, [0, 1, 2, 3]) for key in range(KEYS)]
    assert max(kept) <= 6


FOUND: list[Any] = []


def _keep(element: Any) -> None:
    # Through the module: Beam pickles the function, and this process runs it.
    import tests.simulation.runner.test_bounded_caches as here

    here.FOUND.append(element)
