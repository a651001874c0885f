"""The reader of a slot: positions, repeats of the server, lost connections, budget and end."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import PositionLostError
from penstock.io.change_streams.flat import Ended, FlatFrontier, FlatPosition
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.log_steps import CaughtUp, LogSteps
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.record import ChangeKind, LogRecord, Table
from penstock.io.postgres.stream import SlotStream
from penstock.io.postgres.transactions import TransactionEnd
from tests.support.waiting import wait_until
from tests.unit.postgres.slot_readers import (
    SLOT,
    START,
    Server,
    claim,
    pool_of,
    read_bundle,
    reader,
    records,
)


def read_all(reading):
    found = []
    while True:
        batch = reading.take(10)
        assert batch is not None
        emitted, last = claim(reading, batch)
        found += emitted
        if isinstance(last, Ended):
            return found


@pytest.mark.parametrize("seed", range(20))
def test_every_record_once_in_order_over_lost_connections_and_restarts(seed):
    draw = random.Random(seed)
    log = [item for number in range(1, 12) for item in records(number, draw.randrange(0, 60))]
    log.append(CaughtUp(5000, 10_000))
    expected = [item for item in log if isinstance(item, LogRecord)]
    server, position, found = Server(log, draw), START, []
    while True:
        reading = reader(server, position, end=9_999)
        finished = False
        for _ in range(draw.randrange(1, 6)):
            batch = reading.take(10)
            assert batch is not None
            emitted, last = claim(reading, batch, draw.randrange(0, 4))
            found += emitted
            if finished := isinstance(last, Ended):
                break
        position = reading.position
        reading.stop()
        if finished:
            break
    assert found == expected


def test_a_heartbeat_does_not_skip_the_rest_of_a_transaction():
    # The connection begins at the position, so its first keepalive may come before the transaction is sent again.
    server = Server([CaughtUp(150, 50), *records(2, 5), CaughtUp(5000, 10_000)])
    reading = reader(server, Position(108, 3, "system"), end=9_999)
    assert [record.sequence for record in read_all(reading)] == [4, 5]
    reading.stop()


def test_a_message_between_transactions_is_not_repeated():
    message = LogRecord(ChangeKind.MESSAGE, 5, None, 1, 50, True, prefix="p")
    log = [message, TransactionEnd(51, 5), CaughtUp(5000, 10_000)]
    reading = reader(Server(log), end=9_999)
    batch = reading.take(10)
    (count, emitted, step), *_ = batch.claims()
    assert emitted == [message]
    assert step.position.position[0] >= 51
    batch.claimed = count
    reading.settle(batch)
    reading.stop()


def test_the_reader_stops_receiving_over_its_budget():
    log = [item for number in range(1, 200) for item in records(number, 20)]
    reading = reader(Server(log, None), buffer_bytes=10_000)
    ahead = reading.pool.ahead
    batch = reading.take(10)
    assert batch is not None
    # One read of at most 256 items may pass the budget, and no more are received until steps are claimed.
    assert ahead.queued_bytes <= 10_000 + 256 * 601
    reading.settle(batch)
    reading.stop()
    assert ahead.queued_bytes == 0


def test_a_reader_over_its_budget_still_answers_the_server(monkeypatch):
    # The server ends a connection that does not answer for `wal_sender_timeout`, and decodes the log again.
    monkeypatch.setattr(SlotStream, "keep_alive_seconds", 0.01)
    server = Server(records(1, 300))
    reading = reader(server, buffer_bytes=1)
    wait_until(lambda: len(server.acknowledged) > 5, "the reader sends no status")
    reading.acknowledge(50)
    wait_until(lambda: server.acknowledged[-1] == 50)
    assert len(server.opened) == 1
    reading.stop()


def test_an_error_of_the_thread_is_raised_by_the_consumer():
    server = Server([])

    @contextmanager
    def broken(position, watermark):
        raise ValueError("broken")
        yield

    server.open = broken
    reading = reader(server)
    with pytest.raises(ValueError, match="broken"):
        reading.take(10)
    reading.stop()


def test_an_older_position_acknowledges_nothing():
    server = Server([])
    reading = reader(server, Position(100, 0, "system"))
    reading.acknowledge(50)
    reading.take(0.2)
    reading.stop()
    assert set(server.acknowledged) == {100}


def test_the_log_is_kept_from_the_oldest_prepared_transaction_on():
    log = [*records(1, 1), TransactionEnd(300, 300, prepared=150), CaughtUp(5000, 10_000, prepared=150)]
    reading = reader(Server(log), end=9_999)
    read_all(reading)
    reading.stop()
    assert (reading.position.lsn, reading.position.prepared, reading.position.safe_lsn) == (300, 150, 150)


@pytest.mark.parametrize(("position", "is_lost"), [(400, True), (401, False)])
def test_prepared_changes_that_the_server_does_not_send_again_are_lost(position, is_lost):
    server = Server([UnknownPrepared(400, "g"), CaughtUp(5000, 10_000)])
    reading = reader(server, Position(position, 0, "system"), end=9_999)
    with pytest.raises(PositionLostError, match="'g'") if is_lost else nullcontext():
        read_all(reading)
    reading.stop()


@pytest.mark.parametrize("seed", range(5))
def test_slots_are_read_side_by_side_each_in_its_order_and_acknowledged_on_its_own(seed):
    draw = random.Random(seed)
    logs = {
        slot: [item for number in range(1, 40) for item in records(number, draw.randrange(0, 30))]
        for slot in ("a", "b", "c")
    }
    servers = {slot: Server([*log, CaughtUp(9000, 10_000)]) for slot, log in logs.items()}
    pool = pool_of(servers, end=9_999)
    frontier = FlatFrontier({slot: FlatPosition(list(START), 0) for slot in servers}, 9_999)
    found = defaultdict(list)
    while not frontier.done:
        begun, before = frontier, frontier.watermark
        frontier, bundle = read_bundle(pool, frontier, draw.randrange(1, 4))
        if frontier.done or draw.random() < 0.7:
            for slot, emitted in bundle.items():
                found[slot] += emitted
            assert frontier.done or frontier.watermark >= before
        else:  # the bundle is lost, and the next one begins where it began
            frontier = begun
        for slot, position in begun.positions.items():
            assert max(servers[slot].acknowledged, default=0) <= Position(*position.position).lsn
    assert found == {
        slot: [each for each in log if isinstance(each, LogRecord)] for slot, log in logs.items()
    }


@pytest.mark.slow
def test_the_slot_with_the_lowest_watermark_is_next():
    servers = {
        "ahead": Server([*records(50, 3), CaughtUp(9000, 10_000)]),
        "behind": Server([*records(2, 600), CaughtUp(9000, 10_000)]),
    }
    opening = {"ahead": FlatPosition(list(START), 4_000), "behind": FlatPosition(list(START), 0)}
    frontier = FlatFrontier(opening, 9_999)
    pool = pool_of(servers, end=9_999)
    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        wait_until(lambda: not prefetcher.data_expected, "a slot does not answer")
        batch = prefetcher.take(10)
        (_, _, step), *_ = batch.claims()
        assert step.partition == "behind"


class Scan:
    """An initial snapshot whose tables are known at the second look."""

    initial, progress, recent, is_scanning = ReadView("5:9:6", 100, 50, "exported", 1), None, (), True
    waits_for_log = is_unfinished = False
    looks = 0

    def begin_scan(self, stopped):
        return True

    def advance(self, lsn, timestamp, *, at_end=False):
        return []

    def plan(self):
        self.looks += 1
        return (("public.t", 3, True),) if self.looks > 1 else ()

    def wait(self, seconds):
        time.sleep(0.001)

    def stop(self):
        self.is_scanning = False


def test_the_plan_of_an_initial_snapshot_is_the_last_step_before_its_rows():
    server = Server(records(1, 3))
    pool = pool_of({SLOT: server}, end=None, make_merge=lambda position: Scan())
    frontier = LogFrontier({SLOT: FlatPosition(list(START), 0)}, None)
    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        batch = prefetcher.take(10)
        batch.claimed = len(batch.steps)
        ((_, records_, step),) = batch.claims()
        planned = frontier.advanced({SLOT: step.position})
        assert (records_, step.position.watermark) == ([], 50)
        assert not planned.can_progress
        prefetcher.serve(planned)
        assert prefetcher.take(0.05) is None
    assert not server.opened, "the log is read before the rows"


def test_the_watermark_of_several_slots_is_the_lowest_one():
    frontier = FlatFrontier({"a": FlatPosition(list(START), 70), "b": FlatPosition(list(START), 50)}, None)
    assert frontier.watermark == 50
    assert frontier.advanced({"b": FlatPosition(list(START), 90)}).watermark == 70
    # Without the slot that was read to its end.
    assert frontier.apply(Ended("b")).watermark == 70


def test_slots_stay_together_while_the_number_of_parts_is_the_same():
    frontier = FlatFrontier({name: FlatPosition(list(START), 0) for name in "abc"}, None)
    later = frontier.advanced({"a": FlatPosition(list(START), 9), "b": FlatPosition(list(START), 5)})
    assert [set(part.positions) for part in frontier.deal(2)] == [
        set(part.positions) for part in later.deal(2)
    ]
    assert FlatFrontier.join(later.deal(2)) == later


def test_the_position_of_an_idle_slot_follows_the_end_of_the_log():
    reading = reader(Server([CaughtUp(500, 50), CaughtUp(5000, 10_000)]), end=9_999)
    read_all(reading)
    reading.stop()
    assert (reading.position.lsn, reading.watermark) == (500, 50)


def test_neighbours_of_a_transaction_share_a_step_and_a_read_continues_after_any_step():
    other = Table(2, "public", "other", "DEFAULT", ())
    arrived: list[tuple[Any, int]] = [(item, 10) for item in [*records(1, 20), *records(2, 3)]]
    arrived[1] = replace(arrived[1][0], table=other), 10
    whole = LogSteps("slot", FlatPosition(Position(*START), 0), lambda _, table: table != other, None)
    steps = whole.steps(arrived)
    assert len(steps) < len(arrived) / 2
    expected = [item for item, _ in arrived if isinstance(item, LogRecord) and item.table != other]
    assert [record for _, emitted, _ in steps for record in emitted] == expected
    for number, (_, _, mark) in enumerate(steps):
        rest = LogSteps("slot", mark, whole._wanted, None).steps(arrived)
        before = [record for _, emitted, _ in steps[: number + 1] for record in emitted]
        assert [*before, *(record for _, emitted, _ in rest for record in emitted)] == expected
