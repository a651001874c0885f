"""The requests that docs/object-stores.md states, counted on a simulated object store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.io.staging import owner, remote
from penstock.io.staging.remote import RemoteStore
from penstock.object_stores.guarantees import check_guarantees
from penstock.object_stores.location import Location
from penstock.publish import CheckpointPosition
from penstock.runner.protocol import Coordinator, EpochState
from penstock.runner.protocol.loop import SWEEP_EVERY
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Pipeline, Process, Started
from penstock.runner.store.object_filesystem import ObjectFileSystem
from penstock.runner.store.requests import RequestWatch
from tests.support.object_stores.simulated import SimulatedClock, SimulatedRequests, store_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "object-stores.md"
LOOK_US = 250_000
HOUR_US = 3_600_000_000


def stated(row: str) -> Counter[str]:
    """The requests that a row of the table names: ``1 put, 2 lists`` is a counter of both."""
    (cell,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    found = re.findall(r"([\d,]+) (put|get|head|list|delete|copy)", cell)
    return Counter({kind: int(number.replace(",", "")) for number, kind in found})


class Driver:
    """The parts of a driver that send requests, with one clock."""

    def __init__(self) -> None:
        self.requests, self.now_us = SimulatedRequests(), 0
        self.store = store_of(self.requests, SimulatedClock())
        self.checkpoint = Checkpoint.open(self.store.url, filesystem=ObjectFileSystem(self.store))
        self.coordinator = Coordinator(self.checkpoint, clock=lambda: self.now_us)
        self.coordinator.take_over()
        self.watch = RequestWatch(self.checkpoint, 1, clock=lambda: self.now_us / 1e6)

    def commit(self) -> None:
        self.coordinator.commit(self.coordinator.begin(), EpochState())

    def idle_for_an_hour(self) -> None:
        for _ in range(HOUR_US // LOOK_US):
            self.now_us += LOOK_US
            self.coordinator.check_superseded_while_idle()
            self.watch.look()

    def position(self, claimed: tuple[int, str] | None = None) -> CheckpointPosition:
        own = self.coordinator.own_record
        return CheckpointPosition(own.record.number, own.digest, self.coordinator.digest_of, claimed)

    def requests_of(self, act: Callable[[], object]) -> Counter[str]:
        self.requests.log.clear()
        act()
        return Counter(operation for operation, _ in self.requests.log)


def test_an_epoch_sends_the_requests_that_the_page_states() -> None:
    driver = Driver()
    assert driver.requests_of(driver.commit) == stated("an epoch that commits")


def test_a_sweep_sends_the_requests_that_the_page_states() -> None:
    driver = Driver()
    for _ in range(2):  # the first one keeps the newest records
        for _ in range(SWEEP_EVERY):
            driver.commit()
        swept = driver.requests_of(driver.coordinator.sweep)
    assert swept == stated(f"a sweep, every {SWEEP_EVERY} commits")


def test_an_idle_hour_sends_the_requests_that_the_page_states() -> None:
    driver = Driver()
    assert driver.requests_of(driver.idle_for_an_hour) == stated("an idle hour (nothing due)")


def test_the_notes_of_drivers_take_the_requests_that_the_page_states() -> None:
    driver, started = Driver(), Started(Process.current(), Pipeline())
    notes = DriverNotes(driver.checkpoint)
    notes.note_start(1, started)

    def start() -> None:
        notes.started(1)
        notes.note_start(2, started)

    assert driver.requests_of(start) == stated("… for the notes of drivers, at a start")


def test_the_check_of_a_store_is_the_difference_between_the_starts_that_the_page_names() -> None:
    """`benchmarks/object_store_epoch.py` counts whole starts on a server."""
    found = re.search(r"(\d+) for a new checkpoint, (\d+) for an existing one; (\d+) more", PAGE.read_text())
    assert found
    new, existing, check = map(int, found.groups())
    driver = Driver()
    checked = driver.requests_of(lambda: check_guarantees(driver.store)).total()
    assert checked == check == new - existing


def test_the_mark_of_an_output_takes_the_requests_that_the_page_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver()
    monkeypatch.setattr(remote, "store_at", lambda location: driver.store)
    output = RemoteStore(Location("s3", "bucket", "out"))
    first = driver.requests_of(lambda: owner.claim(output, "job", "sink", driver.position()))
    assert first == stated("… for each file sink, at a start")
    own = driver.coordinator.own_record
    driver.commit()
    claimed = (own.record.number, own.digest)
    later = driver.requests_of(lambda: owner.claim(output, "job", "sink", driver.position(claimed)))
    later["list"] += 1  # the clean-up that follows lists what is staged
    assert later == stated(f"… for each file sink, every {SWEEP_EVERY} commits")
