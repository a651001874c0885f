"""Which task runs which input: a reader stays in its process, and each input is run once, whoever comes when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.protocol.errors import EpochAbortedError
from penstock.runner.tasks.shared_inputs import HostTasks, check_inputs


def run(owners: list[str], tasks: list[tuple[int, str]], *, waited: bool = False) -> dict[str, int]:
    """Let all tasks arrive in this order and choose in turn; return the input of each process."""
    host, chosen = HostTasks(), {}
    for partition, process in tasks:
        host.arrived[partition] = process
    while len(chosen) < len(tasks):
        before = len(chosen)
        for partition, process in tasks:
            if process not in chosen:
                index = host.choose(partition, owners, waited=waited)
                if index is not None:
                    host.taken[index] = partition
                    chosen[process] = index
        if len(chosen) == before:
            waited = True
    return chosen


@pytest.mark.parametrize("tasks", list(itertools.permutations([(0, "B"), (1, "A"), (2, "C")])))
def test_each_process_takes_the_input_that_it_has_read(tasks: list[tuple[int, str]]) -> None:
    assert run(["A", "B", "C"], list(tasks)) == {"A": 0, "B": 1, "C": 2}


@pytest.mark.parametrize("tasks", list(itertools.permutations([(0, "B"), (1, "A")])))
def test_a_process_without_a_stream_leaves_the_only_stream_to_its_owner(tasks: list[tuple[int, str]]) -> None:
    assert run(["A", ""], list(tasks)) == {"A": 0, "B": 1}


def test_a_task_waits_for_the_owner_of_its_input_and_then_takes_it() -> None:
    host = HostTasks({0: "C"})
    assert host.choose(0, ["A", ""], waited=False) is None
    assert host.choose(0, ["A", ""], waited=True) == 0


def test_an_input_of_a_task_on_another_host_is_not_taken() -> None:
    host = HostTasks({1: "A"})
    assert host.choose(1, ["A", ""], waited=False) is None
    assert host.choose(1, ["A", ""], waited=True) == 1


def test_a_second_attempt_of_a_task_runs_the_input_that_the_first_one_took() -> None:
    host = HostTasks({0: "B", 1: "D"}, {0: 1, 1: 0})
    assert host.choose(1, ["A", "B"], waited=False) == 0


def test_the_streams_of_a_dead_process_go_to_others_after_a_wait() -> None:
    assert sorted(run(["A", "B"], [(0, "B"), (1, "C")]).items()) == [("B", 1), ("C", 0)]


@given(st.data())
def test_each_input_is_run_once_in_every_order_of_arrivals_and_choices(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    names = st.sampled_from("ABCDEF")
    owners = data.draw(st.lists(st.one_of(st.just(""), names), min_size=n, max_size=n))
    processes = data.draw(st.lists(names, min_size=n, max_size=n))
    host = HostTasks()
    pending = list(range(n))
    while pending:
        partition = data.draw(st.sampled_from(pending))
        host.arrived[partition] = processes[partition]
        index = host.choose(partition, owners, waited=data.draw(st.booleans()))
        if index is not None:
            assert index not in host.taken
            assert index in host.arrived
            host.taken[index] = partition
            pending.remove(partition)
        elif len(host.arrived) == n:
            # All are here, so the next one that has waited takes an input.
            index = host.choose(partition, owners, waited=True)
            assert index is not None
            host.taken[index] = partition
            pending.remove(partition)
    check_inputs(host.taken, n)


@pytest.mark.parametrize("indices", [[0, 0], [0], [0, 2]])
def test_an_input_that_is_run_twice_or_not_at_all_voids_the_epoch(indices: list[int]) -> None:
    with pytest.raises(EpochAbortedError, match="did not run each input once"):
        check_inputs(indices, 2)
