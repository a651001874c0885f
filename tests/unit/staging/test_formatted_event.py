"""Events that are formatted before the commit, and what the sender of a queue gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.event import ChangeEvent, Op, Source
from penstock.event.coder import encode_event
from penstock.io.staging import Delivery, StagedBatch
from penstock.io.staging.batch import EventBlocks, StagedEvents
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import Refusal, RefusalError, RowRefusedError, Sent
from penstock.io.staging.formatted_event import FormattedEvent, QueueRecord
from penstock.io.staging.formatted_run import FormatBeforeCommit, decode_staged
from penstock.io.staging.send import SendBatchesFn
from penstock.transforms.formats.formatted import Format, FormattedRecord
from tests.unit.formats.events import event_of, schema_of

ROW = event_of(
    schema_of({}), Op.UPDATE, after={}, source=Source("postgresql", schema="public", table="orders")
)


def two_records(event: ChangeEvent) -> list[FormattedRecord]:
    first = FormattedRecord("t", b"k", b"v", event.timestamp, event.version, (("h", b"\xff"),))
    return [first, FormattedRecord("t", b"k", None, -5, event.version)]


def refuses(event: ChangeEvent) -> list[FormattedRecord]:
    raise ValueError("there is no form for it")


def staged(event: ChangeEvent, format: Format, *, refuses: bool = False) -> FormattedEvent:
    """Return what the sender gets of an event that is formatted before the commit."""
    (formatted,) = decode_staged(FormatBeforeCommit(format, "the queue", refuses=refuses)(event))
    assert isinstance(formatted, FormattedEvent)
    return formatted


def test_a_formatted_event_has_the_records_and_what_identifies_the_event() -> None:
    formatted = staged(ROW, two_records)
    assert formatted.records == (
        QueueRecord("t", b"k", b"v", ROW.timestamp // 1_000_000, (("h", b"\xff"),)),
        QueueRecord("t", b"k", None, 0, ()),
    )
    assert (formatted.source, formatted.op, formatted.id) == (ROW.source, "UPDATE", ROW.id)
    assert (formatted.of_row, formatted.reason, formatted.make_event()) == (ROW.key is not None, "", ROW)


def test_an_event_that_is_not_formatted_is_decoded_as_before() -> None:
    assert list(decode_staged(encode_event(ROW))) == [ROW]


def test_an_event_that_the_format_refuses_fails_before_the_commit() -> None:
    with pytest.raises(
        RowRefusedError, match=r"the queue cannot hold .*public\.orders.*there is no form for it"
    ):
        staged(ROW, refuses)


def test_with_an_error_output_the_sender_refuses_it() -> None:
    formatted = staged(ROW, refuses, refuses=True)
    assert (formatted.records, formatted.reason, formatted.make_event()) == (
        (),
        "there is no form for it",
        ROW,
    )


class RefusingTarget:
    """A target that refuses the first event of each batch."""

    name = "the queue"
    mark_seconds = None

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def open(self, *, skip_refused: bool) -> RefusingTarget:
        self.skip_refused = skip_refused
        return self

    def send(self, delivery: Delivery, events: StagedEvents) -> Sent:
        self.seen = list(events)
        if not self.skip_refused:
            raise RefusalError(Refusal(0, "too large"))
        return Sent((Refusal(0, "too large"),))

    def close(self) -> None: ...


def sent(records: Sequence[bytes], *, skip_refused: bool) -> list[Any]:
    block = RecordBlock.of([(0, each) for each in records])
    content = b"".join(EventBlocks(RecordBlockCoder().encode).content([block]))
    batch = StagedBatch(Delivery("sink", "job", 0, 1, 1, 2), len(records), len(content), 0, content=content)
    target: Any = RefusingTarget()
    return list(SendBatchesFn(target, "sink", skip_refused=skip_refused).process(batch))


@pytest.mark.parametrize("formatted", [True, False])
def test_a_refused_event_goes_to_the_error_output(formatted: bool) -> None:
    """Batches of an earlier version have events that are not formatted."""
    encode = FormatBeforeCommit(two_records, "the queue", refuses=False)
    refused, _ = sent([encode(ROW) if formatted else encode_event(ROW)], skip_refused=True)
    assert (refused.value.event, refused.value.reason) == (ROW, "too large")


def test_without_an_error_output_the_message_names_table_and_position() -> None:
    encode = FormatBeforeCommit(two_records, "the queue", refuses=False)
    with pytest.raises(RowRefusedError) as raised:
        sent([encode(ROW)], skip_refused=False)
    assert f"refuses the UPDATE of a row of public.orders at position {ROW.id}: too large" in str(
        raised.value
    )
