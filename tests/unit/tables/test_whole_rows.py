"""Tables of current rows whose changes are staged as rows in Arrow: they are equal to those from events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.batches import ElementBatch
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Op, Version
from penstock.event.coder import encode_event
from penstock.io.columnar import row_runs
from penstock.io.columnar.publish_tables import publish_tables, rows_of
from penstock.io.columnar.replica import events_of_epoch
from penstock.io.columnar.row_runs import EventRows, divided
from penstock.io.columnar.table_commit import TableCommit
from penstock.io.staging.batch import EventBlocks, StagedBatch
from penstock.io.staging.blocks import BucketRun, RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import Delivery
from penstock.io.staging.options import StagingOptions
from tests.unit.tables.histories import SCHEMA, WIDER, Writer
from tests.unit.tables.lakes import FORMATS, Lake, published, update
from tests.unit.tables.test_delta import epoch
from tests.unit.tables.test_snapshot_rows import row, rows

COLUMNS = (
    "id",
    "name",
    "amount",
    "_penstock_key",
    "_penstock_version",
    "_penstock_timestamp",
    "_penstock_deleted",
)


@pytest.fixture(params=FORMATS)
def format_(request: Any) -> type[Lake]:
    return FORMATS[request.param]


@pytest.fixture(autouse=True)
def runs_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_runs, "MIN_ROWS", 2)


@pytest.fixture
def as_events(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of events of the commits that needed events."""
    found: list[int] = []
    original = TableCommit.write_current

    def watched(self: Any, events: Any) -> None:
        found.append(len(events.events))
        original(self, events)

    monkeypatch.setattr(TableCommit, "write_current", watched)
    return found


def block(driver: Any, events: Sequence[ChangeEvent]) -> RecordBlock:
    """Return the block that a task makes of a batch of events."""
    make = rows_of(publish_tables(driver, options=StagingOptions()))
    assert make is not None
    batch = make(ElementBatch(list(events), [0] * len(events)))
    records: list[bytes] = []
    for each in batch.elements:
        records += each.records if isinstance(each, BucketRun) else [encode_event(each)]
    return RecordBlock.of([(0, record) for record in records])


def batch_of(blocks: Sequence[RecordBlock], number: int) -> StagedBatch:
    content = b"".join(EventBlocks(RecordBlockCoder().encode).content(blocks))
    count = sum(len(each.lengths) for each in blocks)
    return StagedBatch(Delivery("sink", "job", 0, 1, 1, number), count, len(content), 0, content=content)


def published_as_rows(
    lake: Lake, epochs: Sequence[Sequence[ChangeEvent]], first: int = 2, **options: Any
) -> None:
    driver = lake.driver(**options)
    for number, events in enumerate(epochs, first):
        driver.publish(epoch(number), [batch_of([block(driver, events)], number)])


def histories(seed: int) -> list[list[ChangeEvent]]:
    """Return epochs of which many have whole changes only: other columns, partial rows and TRUNCATEs are between."""
    writer, rng = Writer(seed), random.Random(seed)
    epochs = []
    for _ in range(14):
        events = writer.changes(rng.randint(2, 9))
        if rng.random() < 0.7:
            events = [whole(each) for each in events if each.op is not Op.TRUNCATE and not moves(each)]
        epochs.append(events)
    # Late and repeated changes are older than what the table has.
    late = [event for events in epochs[:4] for event in events]
    return [*epochs, rng.sample(late, len(late) // 2)]


def whole(event: ChangeEvent) -> ChangeEvent:
    if event.after is None:
        return event
    after = {name: event.after.get(name) for name in event.schema.names}
    return msgspec.structs.replace(event, after=after)


def moves(event: ChangeEvent) -> bool:
    return event.op is Op.UPDATE and event.before is not None


@pytest.mark.slow
@pytest.mark.long_cases("Iceberg-1", "Iceberg-2", "Iceberg-3", seconds=5)
@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_the_same_from_rows_and_from_events(
    format_: type[Lake], tmp_path: Path, seed: int, as_events: list[int]
) -> None:
    epochs = [each for each in histories(seed) if each]
    from_events, from_rows = format_(tmp_path / "events"), format_(tmp_path / "rows")
    published(from_events, epochs)
    needed = len(as_events)
    published_as_rows(from_rows, epochs)
    assert from_rows.rows(*COLUMNS, mode="all") == from_events.rows(*COLUMNS, mode="all")
    # Otherwise the comparison says nothing about the way without events.
    assert 0 < len(as_events) - needed < needed


def test_whole_changes_are_written_without_events(
    format_: type[Lake], tmp_path: Path, as_events: list[int]
) -> None:
    lake = format_(tmp_path / "t")
    epochs = [rows(range(5)), [update(3, 1, 2000), update(4, 1, 2001), update(3, 2, 2002)]]
    published_as_rows(lake, epochs)
    assert lake.rows() == [(0, 0), (1, 0), (2, 0), (3, 2), (4, 1)]
    assert not as_events


def test_a_rest_of_few_changes_needs_no_events(
    format_: type[Lake], tmp_path: Path, as_events: list[int]
) -> None:
    lake = format_(tmp_path / "t")
    driver = lake.driver()
    blocks = [block(driver, some) for some in (rows(range(5)), [update(1, 1, 2000)], [update(2, 1, 2001)])]
    driver.publish(epoch(2), [batch_of(blocks, 2)])
    assert lake.rows() == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 0)]
    assert not as_events


def test_a_change_older_than_the_truncate_before_it_is_left_out(format_: type[Lake], tmp_path: Path) -> None:
    lake = format_(tmp_path / "t")
    truncate = msgspec.structs.replace(row(0, 0, Version(3000), Op.TRUNCATE), key=None, after=None)
    late = [update(1, 1, 2000), update(2, 1, 4000)]
    published_as_rows(lake, [rows(range(3)), [truncate, update(0, 9, 5000)], late])
    assert lake.rows() == [(0, 9), (2, 1)]


def test_an_epoch_with_other_columns_than_the_table_alters_it(
    format_: type[Lake], tmp_path: Path, as_events: list[int]
) -> None:
    lake = format_(tmp_path / "t")
    wider = [msgspec.structs.replace(each, schema=WIDER) for each in (update(1, 1, 2000), update(2, 1, 2001))]
    noted = [msgspec.structs.replace(each, after={**(each.after or {}), "note": "x"}) for each in wider]
    published_as_rows(lake, [rows(range(3)), noted, [update(1, 2, 3000), update(0, 2, 3001)]])
    # The last epoch has the columns of before, so its rows keep the note that they have.
    assert lake.rows("id", "amount", "note") == [(0, 2, None), (1, 2, "x"), (2, 1, "x")]
    assert len(as_events) == 2


def test_rows_of_the_mode_log_are_refused_in_current_with_the_remedy(
    format_: type[Lake], tmp_path: Path
) -> None:
    make = EventRows(lambda event, time_us: "0-of-1")
    (run,) = make(ElementBatch(rows(range(3)), [0] * 3)).elements
    staged = batch_of([RecordBlock.joined(run.times_us, run.records)], 2)
    with pytest.raises(UsageError, match="start the pipeline once with mode='log'"):
        events_of_epoch([staged])


def test_rows_of_the_mode_current_become_events_in_a_log(format_: type[Lake], tmp_path: Path) -> None:
    events = [*rows(range(3)), row(1, 5, Version(2000), Op.DELETE)]
    whole_ones = [
        msgspec.structs.replace(each, after=None) if each.op is Op.DELETE else each for each in events
    ]
    found, others = divided([block(format_(tmp_path / "t").driver(), whole_ones)])
    assert (found, others) == (whole_ones, [])
    assert found[0].schema == SCHEMA
