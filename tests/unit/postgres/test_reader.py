"""The reader of a slot: positions, repeats of the server, lost connections, budget and end."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import PositionLostError, UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import Ended, FlatFrontier, FlatPosition
from penstock.io.change_streams.options import LimitOptions
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.log_steps import CaughtUp, LogSteps
from penstock.io.postgres.pool import StreamPool
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table
from penstock.io.postgres.stream import SlotStream
from penstock.io.postgres.transactions import TransactionEnd
from penstock.timestamps import NANOS
from tests.support.waiting import wait_until

START = Position(0, 0, "system")
SLOT = "penstock"


def records(number, size):
    """Return transaction `number` as the server sends it: its records, then its end."""
    commit = 100 * number
    transaction = LogTransaction(number, commit, commit)
    found = [
        LogRecord(ChangeKind.INSERT, commit, transaction, n, commit - 10 + n, n == size)
        for n in range(1, size + 1)
    ]
    return [*found, TransactionEnd(commit + 8, commit)]


def ends_after(item, lsn):
    if isinstance(item, LogRecord):
        return item.transaction is None or item.transaction.commit_lsn + 8 > lsn
    return item.lsn > lsn or isinstance(item, UnknownPrepared)


class Server:
    """A log in memory. It sends the whole of each transaction that ends after the position, as a real one does."""

    def __init__(self, log, draw=None):
        self.log, self.draw = log, draw
        self.backoff = Backoff("PostgreSQL", UnavailableError)
        self.acknowledged = []
        self.opened = []
        self.now = 0
        self.hurried = []
        """What the server sends when it is asked for the end of its log."""
        self.released = threading.Event()
        self.decoded = threading.Event()
        self.decoded.set()

    @contextmanager
    def open(self, position, watermark):
        self.opened.append(position)
        pending = [item for item in self.log if ends_after(item, position.lsn)]
        server = self

        class Log:
            def acknowledge(self, lsn):
                server.acknowledged.append(lsn)

            def read(self, most):
                if server.draw is not None and server.draw.random() < 0.05:
                    raise UnreachableError("lost")
                if not server.decoded.is_set():
                    server.decoded.wait(0.01)
                    return []
                count = server.draw.randrange(1, 30) if server.draw else most
                taken, pending[:] = pending[:count], pending[count:]
                if not taken:
                    server.released.wait(0.01)
                return [(item, 1) for item in taken]

            def server_time(self):
                return server.now

            def hurry(self):
                pending.extend(server.hurried)

        yield Log()


class OneSlot:
    """The reader of one slot, outside of a bundle."""

    def __init__(self, server, position, end, buffer_bytes, watch):
        self.pool = pool_of({SLOT: server}, end, watch=watch)
        self.pool.ahead.buffer_bytes = buffer_bytes
        self._reader = self.pool.resume(SLOT, FlatPosition(position, 0), 1)
        self.acknowledge, self.uncounted = self._reader.stream.acknowledge, self._reader.uncounted

    def take(self, timeout):
        with self.pool.ahead.changed:
            waiting = self.pool.ahead.changed.wait_for(lambda: self._reader.waiting, timeout)
            return self._reader.take() if waiting else None

    def settle(self, batch):
        with self.pool.ahead.lock:
            self._reader.settle(batch)

    @property
    def position(self):
        return self._reader.position.position

    @property
    def watermark(self):
        return self._reader.position.watermark

    def stop(self):
        self._reader.stop()
        self._reader.join()


def reader(server, position=START, end=None, buffer_bytes=1 << 20, watch=None):
    return OneSlot(server, position, end, buffer_bytes, watch)


def pool_of(servers, end, clock=time.monotonic, make_merge=None, watch=None):
    """Return a pool of readers, one for each server."""

    def make(slot, at, buffer_bytes):
        return SlotStream(
            servers[slot],
            slot,
            at,
            wanted=lambda *_: True,
            end=end,
            buffer_bytes=buffer_bytes,
            clock=clock,
            make_merge=make_merge,
            watch=watch,
        )

    backoff = next(iter(servers.values())).backoff
    return StreamPool(make, backoff, Limits.checked(LimitOptions(idle_stream_seconds=60)))


def claim(reading, batch, most=None):
    """Claim up to `most` runs of a batch; return their records and the last claimed step."""
    found, last = [], None
    for number, (count, emitted, step) in enumerate(batch.claims()):
        if most is not None and number >= most:
            break
        batch.claimed += count
        found += emitted
        last = step
    reading.settle(batch)
    return found, last


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


def test_a_bundle_that_repeats_the_end_of_a_read_finds_it_again():
    pool = pool_of({SLOT: Server([*records(1, 1), CaughtUp(200, 200)])}, end=150)

    def claim(position, with_end):
        """Run a bundle that claims everything, or everything but the end; return its last position."""
        frontier = FlatFrontier({SLOT: FlatPosition(list(position), 0)}, 150)
        with pool.prefetching(frontier) as prefetcher:
            prefetcher.serve(frontier)
            ended = False
            while not ended:
                batch = prefetcher.take(10)
                assert batch is not None, "the end does not come"
                ended = batch.ends_with_lineage
                batch.claimed = len(batch.steps) - (ended and not with_end)
                for _, _, mark in batch.steps[: batch.claimed]:
                    position = position if isinstance(mark, Ended) else mark.position
        return position

    last = claim(START, with_end=False)
    assert claim(last, with_end=True) == last  # this bundle is lost
    assert claim(last, with_end=True) == last


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


def read_bundle(pool, frontier, most):
    """Run a bundle that claims up to `most` batches; return the frontier after it, and the records of each slot."""
    found = defaultdict(list)
    with pool.prefetching(frontier) as prefetcher:
        for _ in range(most):
            if frontier.done:
                break
            prefetcher.serve(frontier)
            batch = prefetcher.take(10)
            assert batch is not None, "no slot has anything"
            for count, emitted, step in batch.claims():
                batch.claimed += count
                found[step.partition] += emitted
                frontier = (
                    frontier.apply(step)
                    if isinstance(step, Ended)
                    else frontier.advanced({step.partition: step.position})
                )
    return frontier, found


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


def read_in_alternating_workers(bundle_ends):
    """Read a transaction of 10,000 records; return the records, and how many bundles two workers in turn needed."""
    log = [*records(1, 10_000), CaughtUp(9000, 10_000)]
    pools = [pool_of({SLOT: Server(log)}, end=9_999) for _ in range(2)]
    frontier = FlatFrontier({SLOT: FlatPosition(list(START), 0)}, 9_999)
    found, bundles = [], 0
    while not frontier.done:
        with pools[bundles % 2].prefetching(frontier) as prefetcher:
            while not frontier.done:
                prefetcher.serve(frontier)
                batch = prefetcher.take(10)
                for count, emitted, step in batch.claims():
                    batch.claimed += count
                    found += emitted
                    is_end = isinstance(step, Ended)
                    frontier = frontier.apply(step) if is_end else frontier.advanced({SLOT: step.position})
                prefetcher.serve(frontier)
                if bundle_ends(prefetcher):
                    break
        bundles += 1
    return found, bundles


def test_a_bundle_that_gets_a_transaction_again_reads_more_than_it_skips(monkeypatch):
    # The server may need longer for a large transaction than a bundle waits for a new connection.
    monkeypatch.setattr("penstock.io.postgres.pool._CONNECTING_SECONDS", 0)
    monkeypatch.setattr("penstock.io.postgres.reopen_cost.MIN_CLAIMED", 0)
    found, bundles = read_in_alternating_workers(lambda prefetcher: not prefetcher.first_record_pending)
    assert [record.sequence for record in found] == list(range(1, 10_001))
    assert bundles < 12


def waits_for_the_server(server):
    """Return whether a bundle waits for a server that has not answered, after the time for a connection."""
    frontier = FlatFrontier({SLOT: FlatPosition(list(START), 0)}, 9_999)
    with pool_of({SLOT: server}, end=9_999).prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        wait_until(lambda: server.opened, "the reader does not connect")
        assert prefetcher.take(0.1) is None
        return prefetcher.data_expected and prefetcher.first_record_pending


def test_a_bundle_waits_for_a_server_that_decodes_and_not_for_one_that_cannot_be_reached(monkeypatch):
    # The server may need longer for a large transaction than for a connection.
    monkeypatch.setattr("penstock.io.postgres.pool._CONNECTING_SECONDS", 0)
    assert waits_for_the_server(Server([]))
    lost = Server([], draw=random.Random(0))
    lost.draw.random = lambda: 0  # each connection is lost at once
    assert not waits_for_the_server(lost)


def open_after(prefetcher, server, now, seconds):
    """Let the server send its first step `seconds` after the bundle began to connect."""
    server.decoded.clear()
    prefetcher.serve(FlatFrontier({SLOT: FlatPosition(list(START), 0)}, None))
    wait_until(lambda: server.opened)
    now[0] += seconds
    assert prefetcher.first_record_pending
    server.decoded.set()


@pytest.mark.parametrize(("opening", "reading"), [(30, 30), (1, 2), (0.05, 0.5)])
@pytest.mark.parametrize("is_at_end", [False, True])
def test_a_bundle_reads_for_a_multiple_of_the_time_that_its_connection_needed(opening, reading, is_at_end):
    server, now = Server([*records(1, 3), *([CaughtUp(9000, 10_000)] if is_at_end else [])]), [100.0]
    pool = pool_of({SLOT: server}, end=None, clock=lambda: now[0])
    with pool.prefetching(FlatFrontier({}, None)) as prefetcher:
        open_after(prefetcher, server, now, opening)
        wait_until(lambda: prefetcher.take(0))
        now[0] += 0.9 * reading
        assert prefetcher.first_record_pending is not is_at_end
        now[0] += 0.2 * reading
        assert not prefetcher.first_record_pending


def test_a_bundle_claims_what_a_new_connection_has_received_before_it_ends():
    server, now = Server([*records(1, 5_000), CaughtUp(9000, 10_000)]), [100.0]
    pool = pool_of({SLOT: server}, end=None, clock=lambda: now[0])
    with pool.prefetching(FlatFrontier({}, None)) as prefetcher:
        open_after(prefetcher, server, now, 0.5)
        wait_until(lambda: pool.ahead.queued_bytes > 5_000 * 600)  # all of them: the log is read to its end
        assert prefetcher.take(0)
        now[0] += 1.9
        assert prefetcher.first_record_pending
        # With a slow step behind the reader, the bundle ends with records unread.
        now[0] += 0.2
        assert not prefetcher.first_record_pending
        now[0] -= 0.2
        while batch := prefetcher.take(0.1):
            batch.claimed = len(batch.steps)
        assert not prefetcher.first_record_pending


def test_a_bundle_of_a_new_connection_ends_after_one_buffer():
    server, now = Server([*records(1, 1_000), CaughtUp(9000, 10_000)]), [100.0]
    pool = pool_of({SLOT: server}, end=None, clock=lambda: now[0])
    pool.ahead.buffer_bytes = 300 * 600
    with pool.prefetching(FlatFrontier({}, None)) as prefetcher:
        open_after(prefetcher, server, now, 0.5)
        claimed = 0
        while claimed < 300:
            assert prefetcher.first_record_pending, claimed
            if batch := prefetcher.take(0.1):
                batch.claimed = len(batch.steps)
                claimed += sum(len(emitted) for _, emitted, _ in batch.steps)
        prefetcher.take(0)
        assert not prefetcher.first_record_pending


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


def claim_all_that_arrives(prefetcher, count):
    """Claim batches until the reader has claimed `count` records and nothing is at hand."""
    claimed = 0
    while claimed < count:
        batch = prefetcher.take(10)
        assert batch is not None
        batch.claimed = len(batch.steps)
        claimed += sum(len(records) for _, records, _ in batch.steps)
    assert prefetcher.take(0) is None  # it takes the claims in


@pytest.mark.parametrize("lag", [1.1, 0.9])
def test_a_bundle_reads_on_although_its_queue_is_empty_while_the_server_sends_old_changes(lag):
    server = Server(records(1, 3))
    server.now = 100 + round(lag * NANOS)  # the transaction was committed at 100
    with pool_of({SLOT: server}, end=None).prefetching(FlatFrontier({}, None)) as prefetcher:
        prefetcher.serve(FlatFrontier({SLOT: FlatPosition(list(START), 0)}, None))
        claim_all_that_arrives(prefetcher, 3)
        assert prefetcher.may_stop is (lag < 1)


def test_a_reader_that_is_behind_asks_for_the_end_of_the_log_and_the_bundle_may_end_there():
    server = Server(records(1, 3))
    server.now = 100 + 5 * NANOS
    server.hurried = [CaughtUp(9_000, server.now)]
    with pool_of({SLOT: server}, end=None).prefetching(FlatFrontier({}, None)) as prefetcher:
        prefetcher.serve(FlatFrontier({SLOT: FlatPosition(list(START), 0)}, None))
        claim_all_that_arrives(prefetcher, 3)
        wait_until(lambda: prefetcher.may_stop)


def test_a_reader_without_a_connection_is_not_behind():
    server = Server(records(1, 3))
    server.now = 100 + 5 * NANOS
    server.draw = random.Random(0)
    answers = iter([1.0])  # the second read loses the connection
    server.draw.random = lambda: next(answers, 0)
    server.draw.randrange = lambda low, high: 3
    with pool_of({SLOT: server}, end=None).prefetching(FlatFrontier({}, None)) as prefetcher:
        prefetcher.serve(FlatFrontier({SLOT: FlatPosition(list(START), 0)}, None))
        claim_all_that_arrives(prefetcher, 3)
        wait_until(lambda: prefetcher.may_stop)


def test_a_bundle_that_continues_a_connection_may_end_inside_of_a_transaction():
    server, now = Server([*records(1, 2_000), CaughtUp(9000, 10_000)]), [100.0]
    pool = pool_of({SLOT: server}, end=9_999, clock=lambda: now[0])
    frontier, _ = read_bundle(pool, FlatFrontier({SLOT: FlatPosition(list(START), 0)}, 9_999), 1)
    now[0] += 3
    with pool.prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        assert not prefetcher.first_record_pending
    assert len(server.opened) == 1


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
