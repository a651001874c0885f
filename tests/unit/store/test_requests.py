"""Requests in the checkpoint folder: for one driver, obeyed once, never fatal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.runner.protocol import CheckpointError
from penstock.runner.store import Checkpoint
from penstock.runner.store.object_filesystem import ObjectFileSystem
from penstock.runner.store.requests import Request, Requests, RequestWatch
from tests.support.object_stores.simulated import SimulatedClock, SimulatedRequests, store_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.open(f"{tmp_path}/checkpoint")


def in_an_object_store() -> Checkpoint:
    store = store_of(SimulatedRequests(), SimulatedClock())
    return Checkpoint.open(store.url, filesystem=ObjectFileSystem(store))


def test_a_request_is_for_the_driver_of_one_generation(checkpoint: Checkpoint) -> None:
    requests = Requests(checkpoint)
    requests.put(7, Request.STOP)
    requests.put(7, Request.STOP)
    requests.put(9, Request.DRAIN)
    assert [requests.of(generation) for generation in (6, 7, 8, 9)] == [
        frozenset(),
        {Request.STOP},
        frozenset(),
        {Request.DRAIN},
    ]
    assert [requests.answer(generation) for generation in (7, 8)] == [{Request.STOP}, frozenset()]
    requests.delete(8)
    assert (requests.of(7), requests.of(9)) == (frozenset(), {Request.DRAIN})


def test_a_request_in_an_object_store_is_found_within_ten_seconds() -> None:
    checkpoint, now = in_an_object_store(), [0.0]
    watch = RequestWatch(checkpoint, 7, clock=lambda: now[0])
    assert watch.look() == frozenset()
    Requests(checkpoint).put(7, Request.STOP)
    Requests(checkpoint).put(7, Request.STOP)
    found = []
    for now[0] in (9.0, 10.0):
        found.append(watch.look())
    assert found == [frozenset(), {Request.STOP}]
    watch.delete()
    assert Requests(checkpoint).of(7) == frozenset()


def test_a_word_of_a_newer_version_is_no_request(checkpoint: Checkpoint) -> None:
    Requests(checkpoint).put(7, Request.STOP)
    Path(checkpoint.folder, "requests", "000000000007.rebalance").touch()
    assert Requests(checkpoint).of(7) == {Request.STOP}


def test_a_driver_looks_at_most_once_a_second(checkpoint: Checkpoint) -> None:
    now = [0.0]
    watch = RequestWatch(checkpoint, 7, clock=lambda: now[0])
    assert watch.look() == frozenset()
    Requests(checkpoint).put(7, Request.DRAIN)
    now[0] = 0.9
    assert watch.look() == frozenset()
    now[0] = 1.0
    assert watch.look() == {Request.DRAIN}
    watch.delete()
    assert Requests(checkpoint).of(7) == frozenset()


def test_storage_that_does_not_answer_is_no_request_and_no_failure(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        lists_cheaply = True

        def list(self, folder: str) -> Any:
            raise OSError("gone")

    object.__setattr__(checkpoint, "filesystem", Broken())
    watch = RequestWatch(checkpoint, 7)
    assert watch.look() == frozenset()
    watch.delete()
    assert caplog.text.count("requests in the checkpoint folder: gone") == 2


def test_only_an_existing_checkpoint_is_opened_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in .*nowhere"):
        Checkpoint.existing(f"{tmp_path}/nowhere")
    assert list(tmp_path.iterdir()) == []
    made = Checkpoint.open(f"{tmp_path}/checkpoint")
    assert Checkpoint.existing(f"{tmp_path}/checkpoint") == made
