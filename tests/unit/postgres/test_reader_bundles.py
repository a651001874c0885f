"""Bundles of the reader of a slot: how long they wait and read, and where they may end."""

from __future__ import annotations

import random

import pytest

from penstock.io.change_streams.flat import Ended, FlatFrontier, FlatPosition
from penstock.io.postgres.log_steps import CaughtUp
from penstock.timestamps import NANOS
from tests.support.waiting import wait_until
from tests.unit.postgres.slot_readers import SLOT, START, Server, pool_of, read_bundle, records


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
