"""The events of a staged batch, with the filter by table that the pipeline has now."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.event import ChangeEvent, Op, Source
from penstock.event.coder import encode_event
from penstock.io.staging import Delivery, StagedBatch
from penstock.io.staging.batch import EventBlocks, StagedEvents
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import Refusal, RefusalError, RowRefusedError, Sent
from penstock.io.staging.formatted_run import decode_staged
from penstock.io.staging.send import SendBatchesFn
from penstock.tables import EVERY_TABLE, TableSelection
from tests.unit.formats.events import event_of, schema_of


def event(table: str, schema: str = "public", op: Op = Op.UPDATE) -> ChangeEvent:
    return event_of(schema_of({}), op, after={}, source=Source("postgresql", schema=schema, table=table))


EVENTS = [event("orders"), event("visits"), event("", "", Op.MESSAGE), event("visits", "sales")]
BLOCK = RecordBlock.of([(0, encode_event(each)) for each in EVENTS])
CONTENT = b"".join(EventBlocks(RecordBlockCoder().encode).content([BLOCK]))
BATCH = StagedBatch(Delivery("sink", "job", 0, 1, 1, 2), len(EVENTS), len(CONTENT), 0, content=CONTENT)


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (EVERY_TABLE, ["public.orders", "public.visits", "", "sales.visits"]),
        (TableSelection(without_tables=("public.visits",)), ["public.orders", "", "sales.visits"]),
        (TableSelection(without_tables=("visits",)), ["public.orders", ""]),
        (TableSelection(tables=("public.*",)), ["public.orders", "public.visits", ""]),
        (TableSelection(("public.*",), ("visits",)), ["public.orders", ""]),
    ],
)
def test_a_filter_leaves_out_events_that_were_staged_before_it(
    selection: TableSelection, found: list[str]
) -> None:
    events = StagedEvents(BATCH, RecordBlockCoder().decode, decode_staged, selection)
    assert [each.source.qualified_table for each in events] == found
    assert len(events) == len(found)


def test_rows_of_tables_that_are_left_out_now_are_not_sent() -> None:
    sent: list[str] = []

    class Target:
        name = "a list"

        def open(self, *, skip_refused: bool) -> Target:
            return self

        def send(self, delivery: Delivery, events: StagedEvents) -> Sent:
            sent.extend(each.source.qualified_table for each in events)
            return Sent()

        def close(self) -> None:
            pass

    target: Any = Target()
    list(SendBatchesFn(target, "sink", selection=TableSelection(without_tables=("visits",))).process(BATCH))
    assert sent == ["public.orders", ""]


def test_the_error_of_a_refused_row_names_the_table_with_its_schema_and_what_to_do() -> None:
    class Target:
        name = "a list"

        def open(self, *, skip_refused: bool) -> Target:
            return self

        def send(self, delivery: Delivery, events: StagedEvents) -> Sent:
            raise RefusalError(Refusal(1, "it has no primary key"))

        def close(self) -> None:
            pass

    target: Any = Target()
    with pytest.raises(RowRefusedError, match=r"without_tables=public\.visits") as refused:
        list(SendBatchesFn(target, "sink").process(BATCH))
    assert "a row of public.visits" in str(refused.value)
    assert "with_exception_handling" in str(refused.value)
    assert not refused.value.retryable
