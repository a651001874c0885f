"""Calls in another process: real connections, and threads in place of the processes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from penstock.helpers import sent_once
from penstock.runner.spark.helper_calls import MAX_WAITING, HelperLostError, HelperPool, answer_calls, connect
from tests.support.waiting import join, wait_until

SECONDS = 30
HELPER = "test-helper"


@sent_once
class Shared:
    """Counts how often it is pickled."""

    pickled = 0

    def __reduce__(self) -> Any:
        type(self).pickled += 1
        return Shared, ()


MET: list[Shared] = []


def keep(shared: Shared) -> int:
    """Keep what it has met, as a format keeps its tables."""
    MET.append(shared)
    return len(MET)


@pytest.fixture
def pool() -> Iterator[HelperPool]:
    with HelperPool() as pool:
        yield pool
    join(*(thread for thread in threading.enumerate() if thread.name == HELPER))


@pytest.fixture
def helped(pool: HelperPool) -> HelperPool:
    """A pool with a helper."""

    def run() -> None:
        with connect(pool.port, pool.key) as connection:
            answer_calls(connection)

    threading.Thread(target=run, name=HELPER, daemon=True).start()
    return pool


def submitted(pool: HelperPool, function: Callable[..., Any], *arguments: Any) -> Any:
    """Submit as soon as a helper has connected."""
    found: list[Any] = []

    def submit() -> bool:
        found.append(pool.submit(function, *arguments))
        return found[-1] is not None

    wait_until(submit)
    return found[-1]


def test_a_helper_makes_calls_in_order(helped: HelperPool) -> None:
    answers = [submitted(helped, divmod, number, 3) for number in range(9)]
    assert [answer.result(SECONDS) for answer in answers] == [divmod(number, 3) for number in range(9)]


def test_a_function_without_a_name_is_sent(helped: HelperPool) -> None:
    assert submitted(helped, lambda number: number + 1, 1).result(SECONDS) == 2


def test_without_a_helper_the_caller_works_itself(pool: HelperPool) -> None:
    assert pool.submit(divmod, 7, 3) is None


def test_a_value_that_is_sent_once_is_one_object_in_all_calls(helped: HelperPool) -> None:
    value = Shared()
    Shared.pickled = 0
    MET.clear()
    assert [submitted(helped, keep, shared).result(SECONDS) for shared in (value, value, Shared())] == [
        1,
        2,
        3,
    ]
    assert MET[0] is MET[1]
    assert MET[2] is not MET[0]
    assert Shared.pickled == 2


def test_after_an_error_of_a_function_the_helper_goes_on(helped: HelperPool) -> None:
    with pytest.raises(HelperLostError):
        submitted(helped, divmod, 1, 0).result(SECONDS)
    assert submitted(helped, divmod, 7, 3).result(SECONDS) == (2, 1)


def test_calls_of_a_helper_that_dies_are_lost_and_no_more_are_sent(pool: HelperPool) -> None:
    connection = connect(pool.port, pool.key)
    calls = [submitted(pool, divmod, number, 3) for number in range(MAX_WAITING)]
    assert pool.submit(divmod, 9, 3) is None, "a helper has only so many calls"
    connection.recv_bytes()
    connection.close()
    for call in calls:
        with pytest.raises(HelperLostError):
            call.result(SECONDS)
    assert pool.submit(divmod, 7, 3) is None


def test_a_function_that_cannot_be_pickled_is_not_sent(helped: HelperPool) -> None:
    lock = threading.Lock()

    def locked(number: int) -> int:
        with lock:
            return number

    submitted(helped, divmod, 7, 3).result(SECONDS)
    assert helped.submit(locked, 1) is None
    assert submitted(helped, divmod, 8, 3).result(SECONDS) == (2, 2), "the helper stays for other functions"


def test_another_key_is_refused_and_the_next_helper_comes(pool: HelperPool) -> None:
    with pytest.raises(AuthenticationError):
        connect(pool.port, b"another")
    with connect(pool.port, pool.key) as connection:
        call = submitted(pool, divmod, 7, 3)
        connection.recv_bytes()
        connection.send_bytes(pickle.dumps(("answer",)))
        assert call.result(SECONDS) == "answer"


def unpicklable() -> NeverLoaded:
    return NeverLoaded()


class NeverLoaded:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def test_a_result_that_cannot_be_unpickled_is_the_callers_to_make(helped: HelperPool) -> None:
    with pytest.raises(HelperLostError):
        submitted(helped, unpicklable).result(SECONDS)
    assert submitted(helped, divmod, 7, 3).result(SECONDS) == (2, 1)
