"""New columns and wider types, by policy."""

from __future__ import annotations

import pytest

from penstock.event import Column, ColumnType, Kind, TableSchema
from penstock.event.schema_changes import (
    SchemaChange,
    SchemaChangedError,
    plan_schema_change,
    wider_type,
)
from penstock.event.schema_policies import ChangePolicies, policies_of

INT32, INT64, TEXT = ColumnType(Kind.INT32), ColumnType(Kind.INT64), ColumnType(Kind.STRING)
_INTS32, _INTS64 = ColumnType(Kind.ARRAY, element=INT32), ColumnType(Kind.ARRAY, element=INT64)
SCHEMA = TableSchema((Column("id", INT64, False, 1), Column("name", TEXT)))


def of(*entries: str) -> ChangePolicies:
    return policies_of(entries, "public", "t")


def test_evolve_adds_new_columns_and_widens_old_ones() -> None:
    change = plan_schema_change("t", {"id": INT32}, SCHEMA, of("evolve"))
    assert change == SchemaChange((SCHEMA.columns[1],), (SCHEMA.columns[0],))
    assert change.alters


def test_ignore_leaves_the_target_as_it_is() -> None:
    change = plan_schema_change("t", {"id": INT32}, SCHEMA, of("ignore"))
    assert change == SchemaChange(ignored=frozenset({"name"}))
    assert not change.alters


@pytest.mark.parametrize("target", [{"id": INT64}, {"id": INT32, "name": TEXT}])
def test_stop_refuses_new_columns_and_wider_types(target: dict[str, ColumnType]) -> None:
    with pytest.raises(SchemaChangedError, match="schema_changes='stop'"):
        plan_schema_change("t", target, SCHEMA, of("stop"))


def test_narrower_and_dropped_columns_of_the_source_alter_nothing() -> None:
    target = {"id": INT64, "name": TEXT, "gone": TEXT}
    narrower = TableSchema((Column("id", INT32, False, 1), Column("name", TEXT)))
    for policy in ("evolve", "ignore", "stop"):
        assert plan_schema_change("t", target, narrower, of(policy)) == SchemaChange()


def test_another_type_is_an_error_except_where_changes_are_ignored() -> None:
    with pytest.raises(SchemaChangedError, match="column name of table t changed from INT64 to STRING"):
        plan_schema_change("t", {"id": INT64, "name": INT64}, SCHEMA, of("evolve"))
    assert plan_schema_change("t", {"id": INT64, "name": INT64}, SCHEMA, of("ignore")) == SchemaChange()


def _decimal(precision: int | None, scale: int | None) -> ColumnType:
    return ColumnType(Kind.DECIMAL, "", precision, scale)


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        (INT32, INT64, INT64),
        (ColumnType(Kind.FLOAT32), ColumnType(Kind.FLOAT64), ColumnType(Kind.FLOAT64)),
        (INT32, ColumnType(Kind.FLOAT64), ColumnType(Kind.FLOAT64)),
        (INT64, ColumnType(Kind.FLOAT64), None),
        (INT64, TEXT, None),
        (_decimal(5, 2), _decimal(9, 2), _decimal(9, 2)),
        (_decimal(5, 2), _decimal(None, None), _decimal(None, None)),
        (ColumnType(Kind.ENUM), TEXT, TEXT),
        (_INTS32, _INTS64, _INTS64),
    ],
)
def test_wider_type_holds_all_values_of_both(
    one: ColumnType, other: ColumnType, wider: ColumnType | None
) -> None:
    assert wider_type(one, other) == wider
    assert wider_type(other, one) == wider


def test_decimals_keep_both_the_whole_and_the_fractional_digits() -> None:
    found = wider_type(_decimal(5, 4), _decimal(6, 0))
    assert found is not None
    assert (found.precision, found.scale) == (10, 4)
