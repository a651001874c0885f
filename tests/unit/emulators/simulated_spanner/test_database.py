"""Commits: timestamps, versions of rows, conflicts, and what the streams record of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_emulators.simulated_spanner.database import Database, ReadSet
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.key_set import KeyRange, KeySet
from penstock_emulators.simulated_spanner.mutation import Delete, Mutation
from penstock_emulators.simulated_spanner.record import DataChange, Mod
from penstock_emulators.simulated_spanner.rows import order_of
from tests.unit.emulators.simulated_spanner.conftest import SECOND, START, database, write


def recorded(made: Database) -> list[DataChange]:
    """Return all data change records of the stream S, in commit order."""
    partitions = made.streams["S"].functions[""].partitions.values()
    found = [r for each in partitions for r in each.records if isinstance(r, DataChange)]
    return sorted(found, key=lambda r: (r.timestamp, r.sequence))


def changes(made: Database) -> list[tuple[str, Mod]]:
    return [(record.mod_type, mod) for record in recorded(made) for mod in record.mods]


def after_insert(*options: str, watched: str = "ALL", **settings: Any) -> Database:
    """Return a database in which the row (1, 10, 'x') was committed."""
    made = database(*options, watched=watched, **settings)
    made.commit([write("insert", Id="1", V="10", W="x")], START)
    return made


@given(
    moments=st.lists(st.integers(0, 3000), min_size=1, max_size=30), granularity=st.sampled_from([1, 1000])
)
def test_commit_timestamps_never_decrease_and_are_not_before_the_time_of_the_commit(
    moments: list[int], granularity: int
) -> None:
    made = database(granularity_us=granularity)
    last = 0
    for number, moment in enumerate(sorted(moments)):
        timestamp = made.commit([write("insert_or_update", Id=str(number))], START + moment * 1000).timestamp
        assert timestamp >= max(last, START + moment * 1000)
        assert timestamp % 1000 == 0
        last = timestamp


def test_transactions_share_a_timestamp_only_if_they_write_different_rows() -> None:
    made = database(granularity_us=1_000_000)
    first, second, third = (
        made.commit([write("insert_or_update", Id=key)], START + SECOND).timestamp for key in ("1", "2", "1")
    )
    assert first == second < third
    places = [(r.timestamp, r.sequence) for r in recorded(made)]
    assert places == sorted(set(places))


def test_commit_timestamps_are_above_those_of_earlier_strong_reads() -> None:
    made = database(granularity_us=1_000_000)
    made.commit([write("insert", Id="1")], START + SECOND)
    seen = made.read_timestamp(START + SECOND)
    assert made.commit([write("insert", Id="2")], START + SECOND).timestamp > seen


def test_reads_at_a_timestamp_see_the_data_of_that_time() -> None:
    made = database()
    table = made.schema.table("T")
    order = order_of(table, ("1",))
    inserted = made.commit([write("insert", Id="1", V="1")], START + SECOND).timestamp
    updated = made.commit([write("update", Id="1", V="2")], START + 2 * SECOND).timestamp
    deleted = made.commit([Delete("T", KeySet((("1",),)))], START + 3 * SECOND).timestamp
    seen = [made.row(table, order, at) for at in (inserted - 1, inserted, updated - 1, updated, deleted)]
    assert [row and row["V"] for row in seen] == [None, "1", "1", "2", None]


@pytest.mark.parametrize("scanned", [False, True])
def test_a_transaction_is_aborted_if_data_that_it_read_has_changed(scanned: bool) -> None:
    made = after_insert()
    table = made.schema.table("T")
    order = order_of(table, ("1",))
    reads = (
        ReadSet(scans={"T": made.last}) if scanned else ReadSet({("T", order): made.version(table, order)})
    )
    made.commit([write("update", Id="1", V="11")], START + SECOND)
    with pytest.raises(ServiceError) as error:
        made.commit([write("update", Id="1", V="12")], START + SECOND, reads=reads)
    assert error.value.code == "ABORTED"
    assert len(recorded(made)) == 2


def test_a_failed_transaction_leaves_nothing() -> None:
    made = database()
    with pytest.raises(ServiceError):
        made.commit([write("insert", Id="1"), write("update", Id="2")], START)
    assert recorded(made) == []
    assert list(made.scan(made.schema.table("T"))) == []


@pytest.mark.parametrize(
    ("capture", "new", "old", "deleted"),
    [
        ("OLD_AND_NEW_VALUES", {"V": "11"}, {"V": "10"}, {"V": "11", "W": "x"}),
        ("NEW_VALUES", {"V": "11"}, {}, {}),
        ("NEW_ROW", {"V": "11", "W": "x"}, {}, {}),
        ("NEW_ROW_AND_OLD_VALUES", {"V": "11", "W": "x"}, {"V": "10"}, {"V": "11", "W": "x"}),
    ],
)
def test_each_capture_type_has_its_values(
    capture: str, new: dict[str, str], old: dict[str, str], deleted: dict[str, str]
) -> None:
    made = after_insert(f"value_capture_type = '{capture}'")
    made.commit([write("update", Id="1", V="11")], START)
    made.commit([Delete("T", KeySet((("1",),)))], START)
    assert changes(made) == [
        ("INSERT", Mod({"Id": "1"}, {"V": "10", "W": "x"}, {})),
        ("UPDATE", Mod({"Id": "1"}, new, old)),
        ("DELETE", Mod({"Id": "1"}, {}, deleted)),
    ]


NOTHING: list[Mutation] = []
KEY_1 = KeySet((("1",),))


@pytest.mark.parametrize(
    ("mutations", "expected"),
    [
        ([write("update", Id="1", V="10")], ["UPDATE"]),  # to the same value
        ([write("update", Id="1")], []),
        ([write("replace", Id="1", V="2")], ["DELETE", "INSERT"]),
        ([write("replace", Id="2", V="2")], ["INSERT"]),
        ([Delete("T", KEY_1), write("insert", Id="1")], ["DELETE", "INSERT"]),
        ([write("insert", Id="2"), Delete("T", KeySet((("2",),)))], []),
        ([write("insert", Id="2"), write("update", Id="2", V="5")], ["INSERT"]),
        ([write("update", Id="1", V="5"), Delete("T", KEY_1)], ["DELETE"]),
        ([Delete("T", KeySet((("7",),)))], []),
        ([write("insert", Id="2"), Delete("T", KeySet(all_rows=True))], ["DELETE"]),
    ],
)
def test_a_transaction_records_its_net_effect_on_each_row(
    mutations: list[Mutation], expected: list[str]
) -> None:
    made = after_insert(partitions=1)
    made.commit(mutations, START + SECOND)
    assert [kind for kind, _ in changes(made)[1:]] == expected


@pytest.mark.parametrize(
    ("watched", "expected"), [("T(V)", ["INSERT", "UPDATE", "DELETE"]), ("T()", ["INSERT", "DELETE"])]
)
def test_a_stream_records_updates_of_the_columns_that_it_watches(watched: str, expected: list[str]) -> None:
    made = after_insert(watched=watched)
    made.commit([write("update", Id="1", W="y")], START)
    made.commit([write("update", Id="1", V="3", W="z")], START)
    made.commit([Delete("T", KEY_1)], START)
    assert [kind for kind, _ in changes(made)] == expected
    assert all("W" not in {**mod.new, **mod.old} for _, mod in changes(made))


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_a_stream_leaves_out_the_kinds_that_its_options_exclude(kind: str) -> None:
    made = after_insert(f"exclude_{kind} = true")
    made.commit([write("update", Id="1", V="3")], START)
    made.commit([Delete("T", KEY_1)], START)
    assert kind.upper() not in [found for found, _ in changes(made)]
    assert len(changes(made)) == 2


@pytest.mark.parametrize(("allowed", "expected"), [("true", 0), ("false", 1)])
def test_excluded_transactions_are_left_out_where_the_stream_allows_it(allowed: str, expected: int) -> None:
    made = database(f"allow_txn_exclusion = {allowed}")
    made.commit([write("insert", Id="1")], START, excluded=True)
    assert len(recorded(made)) == expected


def test_the_transaction_tag_is_recorded() -> None:
    made = database()
    made.commit([write("insert", Id="1")], START, tag="batch job")
    assert [record.tag for record in recorded(made)] == ["batch job"]


@given(
    keys=st.lists(st.integers(-5, 5), unique=True),
    low=st.integers(-6, 6),
    high=st.integers(-6, 6),
    data=st.data(),
)
def test_a_range_deletes_the_rows_between_its_ends(keys: list[int], low: int, high: int, data: Any) -> None:
    made = database()
    table = made.schema.table("T")
    for key in keys:
        made.commit([write("insert", Id=str(key))], START)
    low_closed, high_closed = data.draw(st.booleans()), data.draw(st.booleans())
    span = KeyRange(order_of(table, (str(low),)), order_of(table, (str(high),)), low_closed, high_closed)
    made.commit([Delete("T", KeySet(ranges=(span,)))], START + SECOND)
    left = [int(row["Id"]) for _, row in made.scan(table)]
    inside = {
        k
        for k in keys
        if (low < k or (low_closed and k == low)) and (k < high or (high_closed and k == high))
    }
    assert left == sorted(set(keys) - inside)


def test_the_commit_timestamp_replaces_its_placeholder() -> None:
    made = Database()
    made.apply_ddl(["CREATE TABLE T (Id INT64, At TIMESTAMP) PRIMARY KEY (Id)"], START)
    done = made.commit([write("insert", Id="1", At="spanner.commit_timestamp()")], START + SECOND)
    ((_, row),) = made.scan(made.schema.table("T"))
    assert done.timestamp == START + SECOND
    assert row["At"] == "2023-11-14T22:13:21Z"


def test_records_older_than_the_retention_are_dropped() -> None:
    made = after_insert()
    made.commit([write("update", Id="1", V="2")], START + 86_400 * SECOND)
    made.forget(START + 86_401 * SECOND)
    assert [kind for kind, _ in changes(made)] == ["UPDATE"]
