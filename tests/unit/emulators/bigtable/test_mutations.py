"""Which rows of mutations are taken, and how the change stream shows them."""

from __future__ import annotations

import pytest
from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock_emulators.bigtable.mutations import Refusal, admit, cells_set, shown
from penstock_emulators.bigtable.rules import condemned
from penstock_emulators.bigtable.wire import Mutation

FAMILIES = {"f": False, "g": False, "sums": True}
NOW_US = 1_700_000_000_123_456


def mutation(kind: str, **fields):
    made = Mutation()
    getattr(made, kind).SetInParent()
    for name, value in fields.items():
        setattr(getattr(made, kind), name, value)
    return made


def set_cell(family: str = "f", stamp: int = 0):
    return mutation("set_cell", family_name=family, column_qualifier=b"q", timestamp_micros=stamp)


DELETE_ROW = mutation("delete_from_row")


def test_server_time_is_resolved_to_the_millisecond_of_now() -> None:
    cell = set_cell(stamp=-1)
    assert admit([cell, set_cell()], FAMILIES, NOW_US) is True
    assert cell.set_cell.timestamp_micros == 1_700_000_000_123_000
    assert admit([cell], FAMILIES, NOW_US) is False


def range_of(start: int, end: int):
    made = mutation("delete_from_column", family_name="f")
    made.delete_from_column.time_range.start_timestamp_micros = start
    made.delete_from_column.time_range.end_timestamp_micros = end
    return made


def added_to_a_qualifier_that_is_no_bytes():
    made = mutation("add_to_cell", family_name="sums")
    made.add_to_cell.column_qualifier.int_value = 1
    made.add_to_cell.timestamp.raw_timestamp_micros = 0
    made.add_to_cell.input.int_value = 1
    return made


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (set_cell("unknown"), 5),
        (set_cell("sums"), 3),
        (set_cell(stamp=1), 3),
        (set_cell(stamp=-2), 3),
        (Mutation(), 3),
        (mutation("delete_from_family", family_name="unknown"), 5),
        (mutation("delete_from_column", family_name="unknown"), 5),
        (range_of(2000, 1000), 3),
        (range_of(1000, 1000), 3),
        (range_of(1, 0), 3),
        (mutation("add_to_cell", family_name="f"), 3),
        (mutation("add_to_cell", family_name="sums"), 3),
        (added_to_a_qualifier_that_is_no_bytes(), 3),
        (mutation("merge_to_cell", family_name="unknown"), 5),
    ],
)
def test_a_row_with_one_bad_mutation_is_refused(bad, code: int) -> None:
    verdict = admit([set_cell(), bad], FAMILIES, NOW_US)
    assert isinstance(verdict, Refusal)
    assert verdict.code == code


def test_an_open_ended_time_range_is_accepted() -> None:
    assert admit([range_of(1000, 0), range_of(0, 2000), DELETE_ROW], FAMILIES, NOW_US) is False


def test_a_deleted_row_is_logged_as_deletions_of_the_families_with_data() -> None:
    present = {"g"}
    entries = shown([set_cell("f"), DELETE_ROW, DELETE_ROW, set_cell("g")], present)
    kinds = [entry.WhichOneof("mutation") for entry in entries]
    assert kinds == ["set_cell", "delete_from_family", "delete_from_family", "set_cell"]
    assert [entry.delete_from_family.family_name for entry in entries[1:3]] == ["f", "g"]
    assert present == {"g"}


def test_a_deleted_family_is_not_deleted_again_with_its_row() -> None:
    assert len(shown([mutation("delete_from_family", family_name="f"), DELETE_ROW], {"f"})) == 1


def test_deleting_a_row_without_data_logs_nothing() -> None:
    assert shown([DELETE_ROW], set()) == []


def test_the_answer_of_a_read_modify_write_becomes_set_cells() -> None:
    from google.cloud.bigtable_v2.types import data

    row = data.Row.pb()(key=b"row")
    column = row.families.add(name="f").columns.add(qualifier=b"q")
    column.cells.add(timestamp_micros=1000, value=b"1")
    (made,) = cells_set(row)
    assert (made.set_cell.family_name, made.set_cell.timestamp_micros) == ("f", 1000)


def rule(**fields):
    return table_types.GcRule.pb(table_types.GcRule(fields))


def test_garbage_collection_rules_select_by_version_age_union_and_intersection() -> None:
    stamps, now_us = [9_000_000, 5_000_000, 1_000_000], 10_000_000
    two, young = {"max_num_versions": 2}, {"max_age": {"seconds": 4}}
    assert condemned(rule(**two), stamps, now_us) == [1_000_000]
    assert condemned(rule(**young), stamps, now_us) == [5_000_000, 1_000_000]
    assert condemned(rule(union={"rules": [two, young]}), stamps, now_us) == [5_000_000, 1_000_000]
    assert condemned(rule(intersection={"rules": [two, young]}), stamps, now_us) == [1_000_000]
    assert condemned(rule(), stamps, now_us) == []
