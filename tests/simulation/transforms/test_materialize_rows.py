"""`MaterializeRows`: full rows from the images of each capture type, against a table that a test keeps."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Op
from penstock.transforms import MaterializeRows, YdbFormat
from penstock.transforms.materialize_rows import materialize, materialize_all
from tests.simulation.transforms.scripts import (
    emitted,
    emitted_in_batch,
    event,
    live_cells,
    shuffled_with_lag,
)

COLUMNS = ("State", "Email")
CAPTURES = ("NEW_VALUES", "OLD_AND_NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
values = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
writes = st.lists(st.none() | st.dictionaries(st.sampled_from(COLUMNS), values, min_size=1), max_size=12)

Row = dict[str, Any] | None


def history(number: int, changes: list[Any], capture: str) -> list[tuple[ChangeEvent, Row, Row]]:
    """Return (event as the capture type sends it, full row before, full row after); a change None is a DELETE."""
    row: Row = None
    found = []
    for n, change in enumerate(changes):
        old = row
        if change is None and old is None:
            continue
        op = Op.DELETE if change is None else Op.CREATE if old is None else Op.UPDATE
        row = None if change is None else {"Id": number, **dict.fromkeys(COLUMNS), **(old or {}), **change}
        sent = event(number, 1_000_000 + n * 1_500, f"t{n:02}-{number}", op=op)
        found.append((with_images(sent, capture, old, row, change or {}), old, row))
    return found


def with_images(sent: ChangeEvent, capture: str, old: Row, new: Row, change: dict[str, Any]) -> ChangeEvent:
    changed = {"Id", *change}
    before, after = old, new
    if sent.op is Op.UPDATE and old and new:
        before = {name: old[name] for name in old if name in changed}
        after = new if "ROW" in capture else {name: new[name] for name in new if name in changed}
    if capture in ("NEW_VALUES", "NEW_ROW"):
        before = None
    source = msgspec.structs.replace(sent.source, capture=capture)
    return msgspec.structs.replace(sent, source=source, before=before, after=after)


@given(writes, st.sampled_from(CAPTURES))
def test_every_capture_type_gives_full_rows(changes: list[Any], capture: str) -> None:
    steps = history(1, changes, capture)
    row, full = materialize_all(None, [each for each, _, _ in steps])
    assert [each.after for each in full] == [after for _, _, after in steps]
    assert [each.before for each in full] == [before for _, before, _ in steps]
    assert (row is None) == (not steps or steps[-1][2] is None)


@given(writes, st.sampled_from(CAPTURES), st.lists(st.integers(0, 11)))
def test_repeats_change_nothing(changes: list[Any], capture: str, repeated: list[int]) -> None:
    events = [each for each, _, _ in history(1, changes, capture)]
    doubled = sorted(
        [*events, *(events[n] for n in repeated if n < len(events))], key=lambda each: each.version
    )
    assert materialize_all(None, doubled) == materialize_all(None, events)


def test_null_is_kept_and_a_column_never_seen_is_listed() -> None:
    row, full = materialize(None, event(1, 1_000, State=None))
    assert full is not None
    assert full.after == {"Id": 1, "State": None}
    assert full.unavailable == ("Email",)
    _, full = materialize(row, event(1, 2_000, Email=""))
    assert full is not None
    assert full.after == {"Id": 1, "State": None, "Email": ""}


def test_an_older_snapshot_fills_only_what_no_change_has_sent() -> None:
    row, _ = materialize(None, event(1, 2_000, State="new"))
    row, full = materialize(row, event(1, 1_000, op=Op.READ, State="old", Email="e"))
    assert full is not None
    assert full.after == {"Id": 1, "State": "new", "Email": "e"}
    _, full = materialize(row, event(1, 3_000, State="newer"))
    assert full is not None
    assert full.before == {"Id": 1, "State": "new", "Email": "e"}


def test_a_schema_that_names_only_the_sent_columns_grows() -> None:
    first = event(1, 1_000, State="s")
    second = event(1, 2_000, Email="e")
    schema = type(first.schema)
    first = msgspec.structs.replace(first, schema=schema(first.schema.columns[:2]))
    second = msgspec.structs.replace(
        second, schema=schema((second.schema.columns[0], second.schema.columns[2]))
    )
    _, full = materialize_all(None, [first, second])
    assert full[1].schema.names == ("Id", "State", "Email")
    assert full[1].after == {"Id": 1, "State": "s", "Email": "e"}


@pytest.mark.parametrize("capture", CAPTURES)
def test_rows_are_full_over_a_stream_in_which_events_overtake_each_other(capture: str) -> None:
    rng = random.Random(CAPTURES.index(capture))
    steps = [each for number in range(4) for each in history(number, random_changes(rng), capture)]
    expected = {each.version: (before, after) for each, before, after in steps}
    found = emitted(MaterializeRows(), shuffled_with_lag([each for each, _, _ in steps], rng, lag_ms=9))
    assert {each.version: (each.before, each.after) for each, _ in found} == expected
    assert len(found) == len(expected)


def random_changes(rng: random.Random) -> list[Any]:
    return [rng.choice([None, {"State": n}, {"Email": str(n)}, {"State": None}]) for n in range(12)]


def test_a_batch_gives_full_rows_on_beams_own_runner() -> None:
    rng = random.Random(5)
    steps = [each for number in range(4) for each in history(number, random_changes(rng), "NEW_VALUES")]
    events = [each for each, _, _ in steps]
    rng.shuffle(events)
    found = emitted_in_batch(MaterializeRows(), events)
    assert {each.version: each.after for each, _ in found} == {
        each.version: after for each, _, after in steps
    }


def test_deleted_rows_leave_the_state() -> None:
    created = [event(n, 1_000_000, f"c{n}", op=Op.CREATE, State="s") for n in range(5)]
    deleted = [event(n, 2_000_000, f"d{n}", op=Op.DELETE) for n in range(5)]
    cells = live_cells(MaterializeRows(), [created, 1_500, deleted, 3_000, 4_000])
    assert max(cells) > 0
    assert cells[-1] == 0


def test_a_truncate_and_bigtable_are_refused() -> None:
    with pytest.raises(Exception, match="TRUNCATE of table Orders"):
        emitted(MaterializeRows(), [[event(1, 5, op=Op.TRUNCATE)]])
    other = event(1, 5)
    other = msgspec.structs.replace(other, source=msgspec.structs.replace(other.source, system="bigtable"))
    with pytest.raises(Exception, match="no full row"):
        emitted(MaterializeRows(), [[other]])


@given(writes.filter(any), st.sampled_from(CAPTURES))
def test_image_formats_accept_the_rows_of_every_capture_type(changes: list[Any], capture: str) -> None:
    told = history(1, changes, capture)
    _, found = materialize_all(None, [sent for sent, _, _ in told])
    images = YdbFormat("feed", mode="NEW_AND_OLD_IMAGES")
    for full, (_, before, after) in zip(found, told, strict=True):
        (record,) = images(full)
        shown = json.loads(record.value or b"")
        assert shown.get("oldImage") == without_key(before)
        assert shown.get("newImage") == without_key(after)


@given(writes.filter(any), st.sampled_from(CAPTURES))
def test_updates_of_materialized_rows_are_the_columns_that_changed(changes: list[Any], capture: str) -> None:
    told = history(1, changes, capture)
    _, found = materialize_all(None, [sent for sent, _, _ in told])
    for full, (_, before, after) in zip(found, told, strict=True):
        (record,) = YdbFormat("feed")(full)
        new, old = without_key(after) or {}, without_key(before) or {}
        expected = {name: new[name] for name in new if name not in old or old[name] != new[name]}
        assert json.loads(record.value or b"").get("update", {}) == expected


def without_key(row: Row) -> Row:
    return None if row is None else {name: value for name, value in row.items() if name != "Id"}
