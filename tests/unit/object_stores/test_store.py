"""The outcome of requests whose answers are lost, late or wrong."""

from __future__ import annotations

import pytest

from penstock.object_stores.errors import StoreRefusedError, StoreUnavailableError
from penstock.object_stores.guarantees import UnsuitableStoreError, check_guarantees
from penstock.object_stores.store import ObjectStore
from tests.support.object_stores.simulated import (
    CONFLICT,
    LOST_AFTER,
    LOST_BEFORE,
    OVERLOADED,
    REFUSED,
    SimulatedClock,
    SimulatedRequests,
    store_of,
)


@pytest.fixture
def requests() -> SimulatedRequests:
    return SimulatedRequests()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def store(requests: SimulatedRequests, clock: SimulatedClock) -> ObjectStore:
    return store_of(requests, clock)


@pytest.mark.parametrize(
    "faults",
    [[], [LOST_AFTER], [LOST_BEFORE], [OVERLOADED, LOST_AFTER], [LOST_AFTER, LOST_BEFORE], [CONFLICT]],
)
def test_the_own_object_counts_as_created_even_if_answers_are_lost(store, requests, faults):
    requests.faults = faults
    assert store.create("key", b"mine")
    assert requests.objects == {"key": b"mine"}


@pytest.mark.parametrize("faults", [[], [LOST_BEFORE], [LOST_AFTER, OVERLOADED], [CONFLICT, LOST_BEFORE]])
def test_the_object_of_another_writer_is_never_taken_for_the_own_one(store, requests, faults):
    requests.objects["key"] = b"theirs"
    requests.faults = faults
    assert not store.create("key", b"mine")
    assert requests.objects == {"key": b"theirs"}


def test_exists_without_an_object_is_asked_again_and_not_taken_for_another_writer(store, requests):
    requests.faults = [CONFLICT, None, CONFLICT]
    assert store.create("key", b"mine")


def test_a_store_that_does_not_answer_is_asked_until_unavailable_seconds_with_pauses_that_grow(
    store, requests, clock
):
    requests.faults = [LOST_BEFORE] * 1000
    with pytest.raises(
        StoreUnavailableError, match=r"s3://bucket/prefix gave no answer for 60 s \(17 tries to read"
    ):
        store.read("key")
    assert 50 < clock.now <= 60
    assert clock.pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(clock.pauses) == 5.0


def test_a_create_without_an_answer_is_no_success_and_no_failure(store, requests):
    requests.faults = [LOST_AFTER] + [LOST_BEFORE] * 1000
    with pytest.raises(StoreUnavailableError):
        store.create("key", b"mine")


def test_a_refused_request_is_not_repeated(store, requests):
    requests.faults = [REFUSED]
    with pytest.raises(
        StoreRefusedError, match=r"refused to create key in s3://bucket/prefix: 403 Forbidden"
    ):
        store.create("key", b"mine")
    assert len(requests.log) == 1


def test_a_missing_object_is_not_asked_for_again(store, requests):
    with pytest.raises(FileNotFoundError, match="there is no key in s3://bucket/prefix"):
        store.read("key")
    assert store.size("key") is None
    assert len(requests.log) == 2


@pytest.mark.parametrize("in_the_store", [False, True])
@pytest.mark.parametrize("faults", [[], [LOST_AFTER], [None, LOST_AFTER], [None, LOST_BEFORE]])
def test_a_copy_whose_answer_is_lost_is_found_done(store, requests, in_the_store, faults):
    requests.copies_if_absent = in_the_store
    requests.objects["source"] = b"content"
    requests.faults = faults
    assert store.copy("source", "target")
    assert requests.objects == {"source": b"content", "target": b"content"}


@pytest.mark.parametrize("in_the_store", [False, True])
def test_a_copy_never_overwrites(store, requests, in_the_store):
    requests.copies_if_absent = in_the_store
    requests.objects |= {"source": b"content", "target": b"theirs"}
    assert not store.copy("source", "target")
    assert requests.objects["target"] == b"theirs"
    with pytest.raises(FileNotFoundError):
        store.copy("missing", "target")


def test_a_thousand_objects_are_deleted_in_one_request(store, requests):
    store.delete(f"{number:04d}" for number in range(1001))
    assert requests.log == [("delete", "0000"), ("delete", "1000")]


def test_a_store_with_conditional_puts_passes_the_check_and_keeps_nothing_of_it(store, requests):
    check_guarantees(store)
    assert requests.objects == {}


def test_a_store_that_overwrites_is_refused(store, requests):
    requests.ignores_conditions = True
    with pytest.raises(
        UnsuitableStoreError, match=r"conditional put .* it overwrote the object\. Two drivers"
    ):
        check_guarantees(store)


def test_a_store_whose_conditional_puts_are_not_atomic_is_refused(store, requests):
    put = requests.put_if_absent

    def check_then_write(key: str, data: bytes) -> None:
        if "-race" in key:
            requests.objects[key] = data
        else:
            put(key, data)

    requests.put_if_absent = check_then_write
    with pytest.raises(UnsuitableStoreError, match="succeeded at the same time"):
        check_guarantees(store)


def test_one_race_with_two_winners_is_confirmed_before_a_store_is_refused(store, requests):
    """An answer that was lost on the way, and an overloaded test server, may look like a second winner."""
    put = requests.put_if_absent

    races: list[str] = []

    def overwrite_once(key: str, data: bytes) -> None:
        if "-race" in key and key not in races:
            races.append(key)
        if key in races[:1]:
            requests.objects[key] = data
        else:
            put(key, data)

    requests.put_if_absent = overwrite_once
    check_guarantees(store)
    assert requests.objects == {}
