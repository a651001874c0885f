"""States that are written before a bundle ends: they hold little memory, and a DoFn sees what Beam's own would show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.worker.bundle_processor import FnApiUserStateContext
from apache_beam.transforms import combiners, userstate
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runner.harness import bounded_caches
from penstock.runner.harness.user_state import StateHandler
from penstock.runner.store import StateStore
from penstock.runner.store.cells import Cells, Timers
from penstock.runner.store.keys import KEY_GROUPS

BAG = userstate.BagStateSpec("bag", VarIntCoder())
LIST = userstate.OrderedListStateSpec("list", VarIntCoder())
VALUE = userstate.ReadModifyWriteStateSpec("value", VarIntCoder())
SUM = userstate.CombiningValueStateSpec("sum", VarIntCoder(), combiners.CountCombineFn())
SPECS = {spec.name: spec for spec in (BAG, LIST, VALUE, SUM)}
LARGE = userstate.BagStateSpec("large", BytesCoder())
SIZE = 1000


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_caches, "MAX_ADDED_BYTES", 20 * SIZE)


def context(kind: Callable[..., Any]) -> Any:
    handler = StateHandler()
    store = StateStore.temporary(0, KEY_GROUPS - 1)
    groups = 0, KEY_GROUPS - 1
    handler.attach(
        Cells(store),
        Timers(store, *groups),
        VarIntCoder().get_impl(),
        GlobalWindowCoder().get_impl(),
        watches=False,
    )
    return kind(handler, "transform", VarIntCoder(), GlobalWindowCoder())


def states_of(states: Any, key: int) -> dict[str, Any]:
    """Return the states that Beam gets before it calls the DoFn with an element of `key`."""
    return {name: states.get_state(spec, key, GlobalWindow()) for name, spec in SPECS.items()}


# What a DoFn does to its states; each function returns what it reads. Some iterate while they change the state.


def read_bag(states: dict[str, Any], number: int) -> Any:
    return list(states["bag"].read())


def add_to_bag(states: dict[str, Any], number: int) -> Any:
    states["bag"].add(number)


def add_between_reads(states: dict[str, Any], number: int) -> Any:
    found = states["bag"].read()
    before = list(found)
    states["bag"].add(number)
    return before, list(found), list(states["bag"].read())


def clear_between_reads(states: dict[str, Any], number: int) -> Any:
    before = list(states["bag"].read())
    states["bag"].clear()
    states["bag"].add(number)
    return before, list(states["bag"].read())


def clear_bag(states: dict[str, Any], number: int) -> Any:
    states["bag"].clear()
    return list(states["bag"].read())


def add_to_list(states: dict[str, Any], number: int) -> Any:
    states["list"].add((Timestamp(number % 7), number))


def read_part_of_list(states: dict[str, Any], number: int) -> Any:
    # Sorted, because the values of one time are in no promised order.
    return sorted(states["list"].read_range(Timestamp(number % 5), Timestamp(6)))


def clear_part_of_list(states: dict[str, Any], number: int) -> Any:
    states["list"].clear_range(Timestamp(number % 5), Timestamp(6))
    return sorted(states["list"].read())


def clear_list(states: dict[str, Any], number: int) -> Any:
    states["list"].clear()
    return sorted(states["list"].read())


def change_value(states: dict[str, Any], number: int) -> Any:
    before = states["value"].read()
    states["value"].write(number)
    return before, states["value"].read()


def clear_value(states: dict[str, Any], number: int) -> Any:
    states["value"].clear()
    return states["value"].read()


def count(states: dict[str, Any], number: int) -> Any:
    states["sum"].add(number)
    return states["sum"].read()


STEPS = (
    read_bag,
    add_to_bag,
    add_between_reads,
    clear_between_reads,
    clear_bag,
    add_to_list,
    read_part_of_list,
    clear_part_of_list,
    clear_list,
    change_value,
    clear_value,
    count,
)
ELEMENTS = st.lists(st.tuples(st.integers(0, 1), st.lists(st.sampled_from(STEPS), max_size=4)), max_size=12)


@settings(max_examples=40)
@given(ELEMENTS, st.sampled_from([1, 250, 1000]))
def test_states_show_what_beams_own_show_wherever_they_are_written(elements: Any, limit: int) -> None:
    ours, theirs = context(bounded_caches._BoundedStates), context(FnApiUserStateContext)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_caches, "MAX_ADDED_BYTES", limit)
        for number, (key, steps) in enumerate(elements):
            of_ours, of_theirs = states_of(ours, key), states_of(theirs, key)
            for step in steps:
                assert step(of_ours, number) == step(of_theirs, number), step.__name__
    for states in (ours, theirs):  # as at the end of a bundle
        states.commit()
        states.reset()
    for key in (0, 1):
        of_ours, of_theirs = states_of(ours, key), states_of(theirs, key)
        for step in (read_bag, clear_list, change_value, count):
            assert step(of_ours, 0) == step(of_theirs, 0), step.__name__


def held(states: Any) -> int:
    """Return the number of values that are not written yet."""
    return sum(len(bag._added_elements) for bag in _bags(states))


def _bags(states: Any) -> Iterator[Any]:
    for state in states._all_states.values():
        yield getattr(state, "_underlying_bag_state", state)


def test_a_bag_holds_few_of_the_values_that_a_bundle_adds() -> None:
    states, most = context(bounded_caches._BoundedStates), 0
    for _ in range(500):
        states.get_state(LARGE, 1, GlobalWindow()).add(b"x" * SIZE)
        most = max(most, held(states))
    assert most <= 20 + 2 * bounded_caches._MEASURED
    assert len(list(states.get_state(LARGE, 1, GlobalWindow()).read())) == 500


def test_the_single_values_of_many_keys_are_written_by_size() -> None:
    states, most = context(bounded_caches._BoundedStates), 0
    spec = userstate.ReadModifyWriteStateSpec("large", BytesCoder())
    for key in range(500):
        states.get_state(spec, key, GlobalWindow()).write(b"x" * SIZE)
        most = max(most, held(states))
    assert most <= 20 + 2 * bounded_caches._MEASURED
    assert all(states.get_state(spec, key, GlobalWindow()).read() for key in range(500))


def test_large_values_beside_small_ones_are_counted() -> None:
    states, most = context(bounded_caches._BoundedStates), 0
    for _ in range(500):
        small, large = (states.get_state(spec, 1, GlobalWindow()) for spec in (BAG, LARGE))
        small.add(1)
        large.add(b"x" * SIZE)
        most = max(most, len(large._added_elements))
    assert most <= 20 + 4 * bounded_caches._MEASURED


def test_a_value_that_is_replaced_again_and_again_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    states, written = context(bounded_caches._BoundedStates), []
    extend = StateHandler.extend
    monkeypatch.setattr(StateHandler, "extend", lambda *args: (written.append(args), extend(*args))[1])
    spec = userstate.ReadModifyWriteStateSpec("value", BytesCoder())
    for _ in range(500):
        states.get_state(spec, 1, GlobalWindow()).write(b"x" * 100)
    states.commit()
    assert len(written) == 1


def test_an_ordered_list_holds_few_of_the_values_that_a_bundle_adds() -> None:
    states, most = context(bounded_caches._BoundedStates), 0
    spec = userstate.OrderedListStateSpec("list", BytesCoder())
    for number in range(500):
        ordered = states.get_state(spec, 1, GlobalWindow())
        ordered.add((Timestamp(number), b"x" * SIZE))
        most = max(most, len(ordered._pending_adds))
    assert most <= 20 + 2 * bounded_caches._MEASURED
    assert len(list(states.get_state(spec, 1, GlobalWindow()).read())) == 500
