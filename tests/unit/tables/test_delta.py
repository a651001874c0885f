"""Delta tables on a local disk: the modes against an oracle, repeats, paused drivers and other writers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.attempt import DriverToken
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Kind, Op
from penstock.event.coder import encode_event
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.delta import WriteToDelta
from penstock.io.delta.target import DeltaTarget
from penstock.io.staging import Delivery, LedgerConflictError, StagedBatch, TargetUnavailableError
from penstock.io.staging.batch import EventBlocks
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.epochs import EpochDelivery
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.histories import Writer, split


def batches(events: Sequence[ChangeEvent], epoch: int, generation: int = 1) -> list[StagedBatch]:
    blocks = [RecordBlock.of([(0, encode_event(event)) for event in events])]
    content = b"".join(EventBlocks(RecordBlockCoder().encode).content(blocks))
    delivery = Delivery("sink", "job", 0, 1, generation, epoch)
    return [StagedBatch(delivery, len(events), len(content), 0, content=content)]


def epoch(number: int, generation: int = 1, token: str = "00000000000000a") -> EpochDelivery:
    return EpochDelivery("sink", "job", generation, number, (DriverToken(generation, token),))


def publish(target: DeltaTarget, events: Sequence[ChangeEvent], number: int, generation: int = 1) -> None:
    target.publish(epoch(number, generation), batches(events, number, generation))


def rows(folder: Path, columns: str = "id, name, amount, note", where: str = "not _penstock_deleted") -> Any:
    """Read the table with an engine that is not delta-rs' writer."""
    table = DeltaTable(folder).to_pyarrow_table()
    return duckdb.from_arrow(table).filter(where).project(columns).order("all").fetchall()


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_current_state_is_the_table_of_the_source_after_every_epoch_with_repeats(
    tmp_path: Path, seed: int
):
    writer, rng = Writer(seed), random.Random(seed)
    target = DeltaTarget(str(tmp_path / "t"), "current", "evolve")
    published: list[tuple[int, list[ChangeEvent]]] = []
    for number in range(2, 14):
        events = writer.changes(rng.randint(1, 9))
        publish(target, events, number)
        published.append((number, events))
        old, again = rng.choice(published)  # the runner repeats the last one, a paused driver any
        publish(target, again, old)
        columns = (
            "id, name, amount, note"
            if "note" in DeltaTable(tmp_path / "t").schema().to_json()
            else ("id, name, amount, null as note")
        )
        assert rows(tmp_path / "t", columns) == writer.current()
    assert DeltaTable(tmp_path / "t").transaction_version("sink/job") == (1 << 32) + 13


def test_older_events_of_another_epoch_change_no_newer_row(tmp_path: Path):
    writer = Writer(2)
    target = DeltaTarget(str(tmp_path / "t"), "current", "evolve")
    events = writer.changes(20, truncates=False)
    publish(target, events, 2)
    publish(target, events[:10], 3)
    assert rows(tmp_path / "t", "id, name, amount") == [row[:3] for row in writer.current()]


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_history_has_the_table_of_the_source_at_every_moment(tmp_path: Path, seed: int):
    writer, rng = Writer(seed), random.Random(seed)
    target = DeltaTarget(str(tmp_path / "t"), "history", "evolve")
    moments, number, pending = [], 1, []
    for _ in range(60):
        event = writer.change()
        pending.append(event)
        moments.append((event.timestamp, [row[:3] for row in writer.current()]))
        if rng.random() < 0.2:
            number += 1
            publish(target, pending, number)
            publish(target, pending, number)
            pending = []
    publish(target, pending, number + 1) if pending else None
    for timestamp, expected in moments:
        at = f"make_timestamptz({timestamp // 1000})"
        valid = f"_penstock_timestamp <= {at} and ({at} < _penstock_valid_to or _penstock_valid_to is null)"
        assert rows(tmp_path / "t", "id, name, amount", valid) == expected


def test_the_log_has_each_change_once_and_gains_the_columns_of_the_source(tmp_path: Path):
    writer = Writer(1)
    events = writer.changes(40)
    target = DeltaTarget(str(tmp_path / "t"), "log", "evolve")
    for number, some in enumerate(split(events, random.Random(1)), 2):
        publish(target, some, number)
        publish(target, some, number)
    found = rows(tmp_path / "t", "metadata.version, op, after.note", "true")
    assert [op for _, op, _ in found] == [str(event.op) for event in events]
    assert [note for *_, note in found] == [(event.after or {}).get("note") for event in events]


@pytest.mark.parametrize("mode", ["log", "current"])
def test_a_driver_that_was_paused_in_the_middle_of_a_publication_cannot_commit_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
):
    writer = Writer(3)
    first, second = writer.changes(6, truncates=False), writer.changes(6, truncates=False)
    target = DeltaTarget(str(tmp_path / "t"), mode, "evolve")
    publish(target, first, 2)
    original = DeltaTarget._open

    def pause(self: DeltaTarget, uri: str) -> Any:
        """Return the table, after the new driver has published this epoch and the next one."""
        monkeypatch.setattr(DeltaTarget, "_open", original)
        found = original(self, uri)
        publish(target, second, 3)
        publish(target, writer.changes(6, truncates=False), 5, generation=4)
        return found

    monkeypatch.setattr(DeltaTarget, "_open", pause)
    with pytest.raises(TargetUnavailableError, match="another writer"):
        publish(target, second, 3)
    with pytest.raises(LedgerConflictError):  # the repeat sees that a newer driver has published
        publish(target, second, 3)
    if mode == "log":
        assert rows(tmp_path / "t", "metadata.order", "true") == [(number * 1000,) for number in range(1, 19)]
    else:
        assert rows(tmp_path / "t", "id, name, amount") == [row[:3] for row in writer.current()]


def test_another_copy_of_the_checkpoint_is_refused(tmp_path: Path):
    target = DeltaTarget(str(tmp_path / "t"), "log", "evolve")
    publish(target, Writer(1).changes(2), 9)
    with pytest.raises(LedgerConflictError):
        publish(target, Writer(1).changes(2), 6, generation=5)


def test_a_copy_of_the_checkpoint_with_the_same_numbers_is_refused_and_not_skipped(tmp_path: Path):
    target = DeltaTarget(str(tmp_path / "t"), "log", "evolve")
    events = Writer(1).changes(2)
    target.publish(epoch(2), batches(events, 2))
    target.publish(epoch(2), batches(events, 2))
    with pytest.raises(LedgerConflictError):
        target.publish(epoch(2, token="00000000000000b"), batches(events, 2))
    assert len(rows(tmp_path / "t", "op", "true")) == 2


SMALL = schema_of({"id": Kind.INT64}, n=Kind.INT32)
WIDE = schema_of({"id": Kind.INT64}, n=Kind.INT64, extra=Kind.STRING)


def two_widths() -> tuple[ChangeEvent, ChangeEvent]:
    return (
        event_of(SMALL, after={"id": 1, "n": 1}, timestamp=10**9),
        event_of(WIDE, after={"id": 2, "n": 1 << 40, "extra": "x"}, timestamp=2 * 10**9),
    )


@pytest.mark.parametrize("mode", ["log", "current", "history"])
def test_columns_are_added_and_become_wider(tmp_path: Path, mode: Any):
    target = DeltaTarget(str(tmp_path / "t"), mode, "evolve")
    for number, event in enumerate(two_widths(), 2):
        publish(target, [event], number)
    columns = "after.id, after.n, after.extra" if mode == "log" else "id, n, extra"
    assert rows(tmp_path / "t", columns, "true") == [(1, 1, None), (2, 1 << 40, "x")]


def test_a_snapshot_repairs_what_ddl_left_in_a_replica(tmp_path: Path):
    before = schema_of({"id": Kind.INT64}, email=Kind.STRING, note=Kind.STRING)
    # ADD COLUMN channel DEFAULT 'web', RENAME email TO mail, DROP COLUMN note
    after = schema_of({"id": Kind.INT64}, mail=Kind.STRING, channel=Kind.STRING)
    target = DeltaTarget(str(tmp_path / "t"), "current", "evolve")
    old = [
        event_of(before, after={"id": number, "email": f"{number}@x", "note": "n"}, timestamp=number)
        for number in (1, 2)
    ]
    publish(target, old, 2)
    new = [{"id": number, "mail": f"{number}@x", "channel": "web"} for number in (1, 2)]
    publish(target, [event_of(after, Op.UPDATE, after=new[0], timestamp=10)], 3)
    columns = "id, mail, channel, email, note"
    left = [(1, "1@x", "web", "1@x", "n"), (2, None, None, "2@x", "n")]  # as docs/schema-changes.md says
    assert rows(tmp_path / "t", columns) == left
    publish(target, [event_of(after, Op.READ, after=row, timestamp=20 + row["id"]) for row in new], 4)
    assert rows(tmp_path / "t", columns) == [(n, f"{n}@x", "web", f"{n}@x", "n") for n in (1, 2)]


@pytest.mark.parametrize("mode", ["log", "current", "history"])
def test_the_policy_stop_writes_nothing_of_the_epoch(tmp_path: Path, mode: Any):
    target = DeltaTarget(str(tmp_path / "t"), mode, "stop")
    first, second = two_widths()
    publish(target, [first], 2)
    version = DeltaTable(tmp_path / "t").version()
    with pytest.raises(SchemaChangedError, match="extra"):
        publish(target, [second], 3)
    assert DeltaTable(tmp_path / "t").version() == version


@pytest.mark.parametrize("mode", ["log", "current"])
def test_the_policy_ignore_leaves_new_columns_out(tmp_path: Path, mode: Any):
    schema = schema_of({"id": Kind.INT64}, n=Kind.INT32, extra=Kind.STRING)
    target = DeltaTarget(str(tmp_path / "t"), mode, "ignore")
    publish(target, [two_widths()[0]], 2)
    publish(target, [event_of(schema, after={"id": 2, "n": 2, "extra": "x"}, timestamp=2 * 10**9)], 3)
    assert rows(tmp_path / "t", "after.n" if mode == "log" else "n", "true") == [(1,), (2,)]
    assert "extra" not in DeltaTable(tmp_path / "t").schema().to_json()


def other_types() -> list[list[ChangeEvent]]:
    """Two rows in two epochs: `n` becomes text, in the second one a number again. The second row stays a number."""
    number = schema_of({"id": Kind.INT64}, n=Kind.INT32)
    text = schema_of({"id": Kind.INT64}, n=Kind.STRING)

    def change(schema: Any, op: Op, id_: int, n: Any, second: int) -> ChangeEvent:
        return event_of(schema, op, after={"id": id_, "n": n}, timestamp=second * 10**9)

    return [
        [change(number, Op.CREATE, id_, id_, id_) for id_ in (1, 2)],
        [change(number, Op.UPDATE, 1, 7, 3), change(text, Op.UPDATE, 1, "seven", 4)],
        [change(text, Op.CREATE, 3, "three", 5)],
        [change(number, Op.UPDATE, 3, 3, 6)],
    ]


def test_the_policy_lenient_gives_values_of_another_type_a_column(tmp_path: Path):
    target = DeltaTarget(str(tmp_path / "t"), "current", ("evolve", "type=lenient"))
    expected = [
        [(1, 1), (2, 2)],
        [(1, None, "seven"), (2, 2, None)],
        [(1, None, "seven"), (2, 2, None), (3, None, "three")],
        [(1, None, "seven"), (2, 2, None), (3, 3, None)],
    ]
    for number, (events, left) in enumerate(zip(other_types(), expected, strict=True), 2):
        publish(target, events, number)
        assert rows(tmp_path / "t", "id, n" + ", n__string" * (number > 2)) == left


def test_a_policy_holds_for_its_tables_only(tmp_path: Path):
    first, second = two_widths()
    target = DeltaTarget(f"{tmp_path}/{{table}}", "current", ("evolve", f"{first.source.table}=stop"))
    publish(target, [first], 2)
    other = type(first.source)("postgresql", schema="public", table="other")
    publish(target, [msgspec.structs.replace(each, source=other) for each in two_widths()], 3)
    assert rows(tmp_path / "other", "id, n, extra") == [(1, 1, None), (2, 1 << 40, "x")]
    with pytest.raises(SchemaChangedError, match="extra"):
        publish(target, [second], 4)


def test_a_policy_that_delta_cannot_keep_is_refused_before_the_start(tmp_path: Path):
    with pytest.raises(
        UsageError, match="a Delta table with mode=log cannot keep type=lenient: add type=stop"
    ):
        WriteToDelta(tmp_path / "t", mode="log", schema_changes="lenient")
    with pytest.raises(UsageError, match="cannot keep drop=evolve: add drop=ignore"):
        WriteToDelta(tmp_path / "t", schema_changes=["evolve", "drop=evolve"])


def test_two_tables_of_a_source_need_two_tables_of_the_target(tmp_path: Path):
    from tests.unit.tables.histories import SOURCE

    other = event_of(SMALL, after={"id": 1, "n": 1}, source=type(SOURCE)("postgresql", table="other"))
    events = [*Writer(1).changes(1), other]
    with pytest.raises(UsageError, match="placeholder"):
        publish(DeltaTarget(str(tmp_path / "t"), "log", "evolve"), events, 2)
    publish(DeltaTarget(f"{tmp_path}/by_name/{{table}}", "log", "evolve"), events, 2)
    assert {path.name for path in (tmp_path / "by_name").iterdir()} == {"orders", "other"}


def test_storage_options_are_not_shown():
    assert "hunter2" not in repr(DeltaTarget("s3://b/t", "log", "stop", {"AWS_SECRET_ACCESS_KEY": "hunter2"}))


def test_a_wrong_mode_is_refused_with_those_that_exist():
    with pytest.raises(UsageError, match="log, current, history"):
        WriteToDelta("/t", mode="replica")  # type: ignore[arg-type]


def deletion(number: int, at_seconds: int) -> ChangeEvent:
    """Return the DELETE of the row `number`."""
    return event_of(SMALL, Op.DELETE, before={"id": number, "n": 1}, timestamp=at_seconds * 10**9)


def test_tombstones_are_removed_when_they_are_older_than_their_age(tmp_path: Path):
    target = DeltaTarget(str(tmp_path / "t"), "current", "evolve", tombstone_seconds=1000)
    publish(target, [deletion(1, 5000), deletion(2, 5995)], 2)
    publish(target, [deletion(3, 6004)], 3)
    assert rows(tmp_path / "t", "id", "_penstock_deleted") == [(1,), (2,), (3,)], (
        "too soon after the last time"
    )
    publish(target, [deletion(4, 6015)], 4)
    assert rows(tmp_path / "t", "id", "_penstock_deleted") == [(2,), (3,), (4,)]


def test_a_store_that_does_not_answer_is_asked_again_and_a_mistake_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = iter(
        ["Generic DeltaTable error: Parquet error: Generic S3 error: Error performing PUT", "no such column"]
    )

    def fails(*arguments: Any) -> None:
        raise DeltaError(next(answers))

    monkeypatch.setattr(DeltaTarget, "_open", fails)
    target = DeltaTarget(str(tmp_path / "t"), "log", "evolve")
    with pytest.raises(TargetUnavailableError, match="Generic S3 error"):
        publish(target, Writer(1).changes(1), 2)
    with pytest.raises(DeltaError, match="no such column"):
        publish(target, Writer(1).changes(1), 2)


def test_only_the_tasks_of_a_log_need_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    event = event_of(SMALL, Op.CREATE, after={"id": 1, "n": 1})
    (current,) = WriteToDelta("lake/{table}", mode="current").preview(event)
    assert current["table"].startswith("lake/")
    (log,) = WriteToDelta("lake/{table}", mode="log").preview(event)
    assert log["table"] == str(tmp_path / current["table"])
