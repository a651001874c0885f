"""The change log of BigQuery: each event is there once and in order, whatever fails and when."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attempt import DriverToken
from penstock.event import NO_COLUMNS, ChangeEvent, Op, Source, Version
from penstock.io.bigquery import rows as rows_module
from penstock.io.bigquery.errors import BigQueryTargetError
from penstock.io.bigquery.log_rows import LEDGER
from penstock.io.bigquery.log_sender import LogSender
from penstock.io.bigquery.services import DEFAULT_STREAM
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.delivery import Delivery, LedgerConflictError, Sent, TargetUnavailableError
from tests.simulation.bigquery.service import BigQuery, Faults, Process, Row

BAD = 13
TARGET = BigQueryTarget("p", "d")
KINDS = ("drop", "lose", "pause before", "pause after")


def event_of(number: int, table: str) -> ChangeEvent:
    after = {"n": BAD if number % 7 == 6 else number}
    version = Version(number, str(number))
    return ChangeEvent(Source("test", table=table), Op.UPDATE, 0, {"k": 1}, None, after, version, NO_COLUMNS)


def is_bad(row: Row) -> bool:
    return row.get("after") == f'{{"n":{BAD}}}'


@dataclass
class World:
    """A driver with two workers, each with its sender, and the batches that it has committed."""

    batches: list[list[ChangeEvent]]
    service: BigQuery = field(default_factory=lambda: BigQuery(is_bad))
    delivered: int = 0
    results: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    senders: dict[int, LogSender] = field(default_factory=dict)

    def deliver(self, number: int, worker: int, faults: Faults | None = None) -> None:
        """Deliver a batch, and again while BigQuery does not answer."""
        if faults is not None:
            # A process that is paused is not the one that continues.
            process = Process(self.service)
            self._try(number, LogSender(TARGET, True, process, process), faults, process)
        while True:
            sender = self.senders.get(worker)
            if sender is None:
                process = Process(self.service)
                sender = self.senders[worker] = LogSender(TARGET, True, process, process)
            if self._try(number, sender):
                break
            del self.senders[worker]
        self.delivered = max(self.delivered, number + 1)

    def _try(
        self, number: int, sender: LogSender, faults: Faults | None = None, process: Process | None = None
    ) -> bool:
        if faults is not None and process is not None:
            process.request = faults
        delivery = Delivery("sink", "job", 0, 1, 1, number + 1)
        try:
            sent: Sent = sender.send(delivery, self.batches[number])
        except TargetUnavailableError:
            return False
        if number + 1 >= self.delivered:
            self.results.setdefault(number, set()).add(tuple(each.index for each in sent.refused))
        return True

    def check(self) -> None:
        """Compare the tables with the batches."""
        for table in {event.source.table for batch in self.batches for event in batch}:
            expected = [
                (number + 1, index)
                for number, batch in enumerate(self.batches)
                for index, event in enumerate(batch)
                if event.source.table == table and event.after != {"n": BAD}
            ]
            found = [(row["batch_epoch"], row["batch_index"]) for row in self.service.tables.get(table, [])]
            assert found == expected
        for number, batch in enumerate(self.batches):
            bad = tuple(index for index, event in enumerate(batch) if event.after == {"n": BAD})
            assert self.results[number] == {bad}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    numbers = iter(range(1000))
    sizes = draw(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=6), min_size=1, max_size=5))
    return World([[event_of(next(numbers), table) for table in batch] for batch in sizes])


@pytest.fixture(autouse=True, scope="module")
def _small_requests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "REQUEST_BYTES", 500)
        yield


@given(worlds(), st.data())
@settings(max_examples=120)
def test_lost_answers_pauses_and_ended_streams_lose_and_double_nothing(
    world: World, data: st.DataObject
) -> None:
    world.service.rows_first = data.draw(st.booleans())
    while world.delivered < len(world.batches):
        number = world.delivered
        worker = data.draw(st.integers(0, 1))
        kind = data.draw(st.sampled_from((*KINDS, "none", "end")))
        if kind == "end" and world.service.streams:
            stream = data.draw(st.sampled_from(sorted(world.service.streams)))
            world.service.end(stream, data.draw(st.sampled_from(("FINALIZED", "NOT_FOUND"))))
        if kind not in KINDS:
            world.deliver(number, worker)
            continue
        others = data.draw(st.integers(0, 2))
        ends = data.draw(st.booleans())

        def work(number: int = number, others: int = others, ends: bool = ends) -> None:
            if ends:
                for name in list(world.service.streams):
                    world.service.end(name, "NOT_FOUND")
            for each in range(number, min(number + 1 + others, len(world.batches))):
                world.deliver(each, each % 2)

        world.deliver(number, worker, Faults(data.draw(st.integers(0, 12)), kind, work))
    world.check()


def test_a_batch_of_which_all_rows_are_refused_does_not_move_the_ledger_back() -> None:
    world = World([[event_of(0, "a")], [event_of(1, "a")], [event_of(6, "a")], [event_of(3, "a")]])
    world.service.rows_first = True
    world.deliver(0, worker=0)
    world.deliver(1, worker=1)
    world.deliver(2, worker=0)  # its entries are those of the first batch
    world.deliver(3, worker=2)
    world.check()


def test_a_lost_ledger_is_an_error_and_not_a_loss() -> None:
    world = World([[event_of(0, "a")], [event_of(1, "a")]])
    world.deliver(0, 0)
    world.service.tables[LEDGER].clear()
    process = Process(world.service)
    with pytest.raises(BigQueryTargetError, match="contradicts"):
        LogSender(TARGET, True, process, process).send(Delivery("sink", "job", 0, 1, 1, 2), world.batches[1])


def test_an_offset_beyond_the_end_of_a_stream_is_an_error() -> None:
    world = World([[event_of(0, "a")], [event_of(1, "a")]])
    world.deliver(0, 0)
    next(iter(world.service.streams.values())).rows = 0
    process = Process(world.service)
    with pytest.raises(BigQueryTargetError, match="OUT_OF_RANGE"):
        LogSender(TARGET, True, process, process).send(Delivery("sink", "job", 0, 1, 1, 2), world.batches[1])


def test_every_row_of_a_log_has_an_offset() -> None:
    offsets: list[int | None] = []

    class Watched(Process):
        def append(self, table, stream, layout, rows, offset):
            if stream != DEFAULT_STREAM:
                offsets.append(offset)
            super().append(table, stream, layout, rows, offset)

    process = Watched(BigQuery())
    sender = LogSender(TARGET, True, process, process)
    for epoch in (1, 2):
        sender.send(Delivery("sink", "job", 0, 1, 1, epoch), [event_of(epoch, "a")])
    assert offsets == [0, 1]


def test_a_copy_of_the_checkpoint_with_the_same_numbers_is_refused_and_not_skipped():
    service = BigQuery()
    process = Process(service)

    def send(epoch: int, token: str) -> None:
        delivery = Delivery("sink", "job", 0, 1, 1, epoch, (DriverToken(1, token),))
        LogSender(TARGET, True, process, process).send(delivery, [event_of(epoch, "a")])

    send(2, "a")
    send(2, "a")
    for epoch in (2, 3):
        with pytest.raises(LedgerConflictError):
            send(epoch, "b")
    assert len(service.tables["a"]) == 1
