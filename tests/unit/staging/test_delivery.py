"""The rule of the ledger, and how a batch is sent to a target that does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.attempt import DriverToken
from penstock.errors import InvariantError
from penstock.event.coder import encode_event
from penstock.io.staging import (
    Delivery,
    LedgerConflictError,
    LedgerEntry,
    Refusal,
    RefusalError,
    RowRefusedError,
    Sent,
    StagedBatch,
    TargetUnavailableError,
    is_delivered,
)
from penstock.io.staging.batch import EventBlocks
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import PARTLY_WRITTEN
from penstock.io.staging.delivery_coders import RefusedEventCoder
from penstock.io.staging.refused import RefusedEvent
from penstock.io.staging.send import SendBatchesFn
from tests.simulation.sinks.epochs import event_of


def delivery(generation: int, epoch: int, drivers: Sequence[DriverToken] = ()) -> Delivery:
    return Delivery("sink", "job", 0, 4, generation, epoch, tuple(drivers))


CONTENT = b"".join(
    EventBlocks(RecordBlockCoder().encode).content(
        [RecordBlock.of([(0, encode_event(event_of(n, n))) for n in (1, 2)])]
    )
)
BATCH = StagedBatch(delivery(1, 5), 2, len(CONTENT), 0, content=CONTENT)


@given(st.lists(st.sampled_from(["commit", "take over"]), min_size=1), st.data())
def test_in_one_history_deliveries_after_the_ledger_are_sent_and_others_are_skipped_or_refused(steps, data):
    """Only a driver that was superseded sends a delivery of an older generation than the ledger's."""
    number, drivers, committed = 1, [DriverToken(1, "a")], []
    for step in steps:
        number += 1
        if step == "commit":
            committed.append(delivery(drivers[-1].generation, number, drivers))
        else:
            drivers = [*drivers, DriverToken(number, f"{number}")][-3:]
    if committed:
        ledger = data.draw(st.integers(0, len(committed) - 1))
        entry = committed[ledger].position
        for index, each in enumerate(committed):
            if each.generation < entry.generation:
                with pytest.raises(LedgerConflictError):
                    is_delivered(entry, each)
            else:
                assert is_delivered(entry, each) == (index <= ledger)


def test_a_new_writer_has_no_entry_and_is_sent():
    assert not is_delivered(None, delivery(1, 2))


@pytest.mark.parametrize(
    ("ledger", "generation", "epoch"),
    [
        (LedgerEntry(5, 100), 51, 52),  # restored from an older copy, then continued
        (LedgerEntry(51, 60), 5, 70),  # the copy was continued, and now the original is
        (LedgerEntry(51, 60), 5, 55),
        (LedgerEntry(51, 60), 5, 20),  # restored from a copy that is older than the last take-over
    ],
)
def test_a_checkpoint_that_was_copied_is_refused_and_not_skipped(ledger, generation, epoch):
    with pytest.raises(LedgerConflictError, match="copied or restored"):
        is_delivered(ledger, delivery(generation, epoch))


OWN = (DriverToken(5, "e"), DriverToken(51, "a"), DriverToken(60, "b"))


@pytest.mark.parametrize(
    "ledger",
    [
        LedgerEntry(60, 61, "c"),  # original and copy began with the same record
        LedgerEntry(60, 90, "c"),
        LedgerEntry(51, 52, "c"),  # the copy ended before the driver of now took over
        LedgerEntry(55, 56, "c"),
        LedgerEntry(5, 52, "e"),  # an own driver, which ran longer in the copy
    ],
)
def test_an_entry_of_a_driver_of_another_copy_is_refused_although_its_numbers_fit(ledger):
    with pytest.raises(LedgerConflictError, match="copied or restored"):
        is_delivered(ledger, delivery(60, 62, OWN))


@pytest.mark.parametrize(
    ("ledger", "delivered"),
    [
        (LedgerEntry(60, 62, "b"), True),
        (LedgerEntry(60, 61, "b"), False),
        (LedgerEntry(51, 55, "a"), False),
        (LedgerEntry(2, 3, "?"), False),  # older than every driver that is known
        (LedgerEntry(60, 62), True),  # written by a runner that names no drivers
    ],
)
def test_an_entry_of_an_own_driver_counts(ledger, delivered):
    assert is_delivered(ledger, delivery(60, 62, OWN)) == delivered


def test_writers_of_another_number_of_shards_have_entries_of_their_own():
    # Batches of both numbers may share an epoch when the number is changed.
    assert Delivery("s", "j", 1, 4, 1, 2).writer != Delivery("s", "j", 1, 8, 1, 2).writer


class ScriptedTarget:
    """Answers as the script says: an exception is raised, anything else returned. Counts connections."""

    name = "Scripted at example.com"

    def __init__(self, answer: Callable[[int], Sent | Exception]) -> None:
        self.answer, self.tries, self.opened, self.closed = answer, 0, 0, 0

    def check(self) -> None:
        pass

    def open(self, *, skip_refused: bool) -> ScriptedTarget:
        self.opened += 1
        return self

    def send(self, delivery, events) -> Sent:
        self.tries += 1
        answer = self.answer(self.tries)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def send(target: ScriptedTarget, step: float = 1.0, seconds: float = 600) -> list[object]:
    clock = count(step=step)
    fn = SendBatchesFn(
        target, "sink", unavailable_seconds=seconds, clock=lambda: next(clock), pause=lambda pause: None
    )
    outputs = list(fn.process(BATCH))
    fn.teardown()
    return outputs


def test_a_target_that_does_not_answer_is_asked_again_on_a_new_connection(caplog):
    target = ScriptedTarget(lambda tries: Sent() if tries == 4 else TargetUnavailableError("refused"))
    with caplog.at_level(logging.WARNING):
        assert len(send(target, step=30)) == 1
    assert (target.tries, target.opened, target.closed) == (4, 4, 4)
    assert "has not answered for" in caplog.text


def test_a_target_that_does_not_answer_for_unavailable_seconds_fails_the_epoch_with_its_last_answer():
    target = ScriptedTarget(lambda tries: TargetUnavailableError("connection refused"))
    with pytest.raises(
        TargetUnavailableError, match=r"Scripted at example.com did not answer.*connection refused"
    ):
        send(target, seconds=20)
    assert 3 < target.tries < 25


def test_other_errors_are_not_repeated_and_close_the_connection():
    target = ScriptedTarget(lambda tries: ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        send(target)
    assert (target.tries, target.closed) == (1, 1)


def test_a_refused_row_is_named_by_its_position_and_not_by_its_values():
    target = ScriptedTarget(lambda tries: RefusalError(Refusal(1, "value too long")))
    with pytest.raises(RowRefusedError) as failed:
        send(target)
    assert f"position {event_of(2, 2).id}: value too long. Nothing of its batch was written" in str(
        failed.value
    )
    assert not failed.value.retryable


def test_a_refused_row_of_a_batch_that_is_written_in_parts_does_not_promise_that_nothing_was_written():
    target = ScriptedTarget(lambda tries: RefusalError(Refusal(1, "value too long"), PARTLY_WRITTEN))
    with pytest.raises(RowRefusedError, match="Other rows of its batch may be written already") as failed:
        send(target)
    assert "Nothing of its batch" not in str(failed.value)


def test_a_refusal_outside_of_the_batch_is_a_bug_of_the_sender():
    with pytest.raises(InvariantError):
        send(ScriptedTarget(lambda tries: Sent((Refusal(2, "?"),))))


def test_a_refused_event_survives_its_coder():
    refused = RefusedEvent(event_of(1, 1), "t", "r")
    assert RefusedEventCoder().decode(RefusedEventCoder().encode(refused)) == refused
