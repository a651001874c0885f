"""The entries of `schema_changes`, what each policy does with each kind of change, and what each sink can keep."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.event import Column, ColumnType, Kind, TableSchema
from penstock.event.schema_changes import (
    SchemaChange,
    SchemaChangedError,
    one_schema,
    plan_schema_change,
)
from penstock.event.schema_policies import (
    EVOLVE,
    GENERAL,
    KINDS,
    POLICIES,
    Abilities,
    ChangeKind,
    ChangePolicies,
    Policy,
    check_plain,
    check_policies,
    policies_of,
    policy_entries,
)
from penstock.io.bigquery import WriteToBigQuery
from penstock.io.bigquery.options import ABILITIES as BIGQUERY
from penstock.io.columnar.options import ABILITIES as TABLES
from penstock.io.delta import WriteToDelta
from penstock.io.iceberg import WriteToIceberg
from penstock.io.iceberg.options import ICEBERG_ABILITIES
from penstock.io.sql.options import ABILITIES as SQL

SMALL, BIG, TEXT = ColumnType(Kind.INT32), ColumnType(Kind.INT64), ColumnType(Kind.STRING)
ID, N, N_WIDE, N_TEXT = (
    Column("id", BIG, False, 1),
    Column("n", SMALL),
    Column("n", BIG),
    Column("n", TEXT),
)


def of(*entries: str, schema: str = "public", table: str = "orders") -> ChangePolicies:
    return policies_of(entries, schema, table)


# --- the entries ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["evolve", "ignore", "stop"])
def test_one_word_means_what_it_meant_before_there_were_kinds(policy: Policy) -> None:
    kinds = {"evolve": ("evolve", "evolve", "stop"), "ignore": ("ignore",) * 3, "stop": ("stop",) * 3}
    found = policies_of(policy, "public", "orders")
    assert (found.add, found.widen, found.type) == kinds[policy]
    assert (found.narrow, found.drop, found.rename) == ("lenient",) * 3


def test_no_entry_is_evolve() -> None:
    assert of() == of("evolve") == EVOLVE


def test_the_last_entry_that_fits_a_table_and_a_kind_counts() -> None:
    entries = ("stop", "orders=evolve", "public.o*.add=ignore", "sales.orders=lenient", "type=ignore")
    assert of(*entries) == ChangePolicies(add="ignore", widen="evolve", type="ignore")
    assert of(*entries, schema="sales") == ChangePolicies(add="lenient", widen="lenient", type="ignore")
    assert of(*entries, table="visits") == ChangePolicies(add="stop", widen="stop", type="ignore")


def test_a_table_with_the_name_of_a_kind_is_written_as_a_glob() -> None:
    assert of("sales.[d]rop=stop", schema="sales", table="drop").add == "stop"
    assert of("[k]ey=stop", table="key").add == "stop"
    assert [entry.pattern for entry in policy_entries(("key=stop", "[k]ey.add=stop"))] == ["", "[k]ey"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("evolv",), r"one of evolve, .*; did you mean 'evolve'\?"),
        (("orders=follow",), "TABLE.KIND=POLICY with a kind of add, widen"),
        (("=stop",), "names no table: write 'stop' for all tables"),
        ((".add=stop",), "names no table"),
        (("orders=stop", "evolve"), "'evolve' must be the first one"),
    ],
)
def test_an_entry_that_cannot_be_read_or_has_no_effect_is_refused(
    entries: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        policy_entries(entries)


@given(
    first=st.sampled_from(POLICIES),
    entries=st.lists(
        st.tuples(
            st.sampled_from(["", "orders", "public.*", "visits"]),
            st.sampled_from([*KINDS, None]),
            st.sampled_from(POLICIES),
        ).filter(lambda entry: entry[0] or entry[1]),
        max_size=6,
    ),
)
def test_the_policy_of_a_kind_is_that_of_its_last_entry(first: Policy, entries: list[Any]) -> None:
    texts = [first, *(f"{'.'.join(filter(None, entry[:2]))}={entry[2]}" for entry in entries)]
    found = of(*texts)
    for kind in KINDS:
        expected: Policy = GENERAL[first].get(kind, getattr(EVOLVE, kind))
        for table, of_kind, policy in entries:
            meant = GENERAL[policy].get(kind) if of_kind is None else policy if of_kind == kind else None
            if table != "visits" and meant is not None:
                expected = meant
        assert getattr(found, kind) == expected


# --- what a sink can keep -------------------------------------------------------------------------------------------

SINKS: dict[str, Abilities] = {
    "Delta, Iceberg: log": TABLES["log"],
    "Delta: current, history": TABLES["current"],
    "Iceberg: current, history": ICEBERG_ABILITIES["current"],
    "PostgreSQL: current": SQL,
    "BigQuery: current": BIGQUERY,
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sink", SINKS)
def test_a_policy_that_a_sink_cannot_keep_is_refused(sink: str, kind: ChangeKind, policy: Policy) -> None:
    abilities = SINKS[sink]
    for entry in (f"{kind}={policy}", f"sales.*.{kind}={policy}"):
        if policy in abilities.get(kind, ()):
            check_policies(("evolve", entry), abilities, "the sink")
        else:
            with pytest.raises(UsageError, match=f"the sink cannot keep {entry.replace('*', '.')}: "):
                check_policies(("evolve", entry), abilities, "the sink")


def test_the_refusal_names_the_entry_that_helps() -> None:
    with pytest.raises(
        UsageError, match="cannot keep type=lenient: add type=stop, or another one of ignore, stop"
    ):
        check_policies("lenient", TABLES["log"], "a Delta table with mode=log")
    check_policies(("lenient", "type=stop"), TABLES["log"], "a Delta table with mode=log")
    with pytest.raises(UsageError, match=r"cannot keep orders\.type=lenient"):
        check_policies(("evolve", "orders=lenient", "visits.type=stop"), TABLES["log"], "a Delta table")


@pytest.mark.parametrize("kind", ["rename", "drop"])
@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (partial(WriteToDelta, "/lake/{table}"), "needs column mapping .*delta-rs refuses"),
        (partial(WriteToDelta, "/lake/{table}", mode="log"), "Older changes stay in a log under the names"),
        (partial(WriteToIceberg, "shop.{table}", mode="log"), "Older changes stay in a log under the names"),
        (
            partial(WriteToBigQuery, project="p", dataset="d", mode="current"),
            "Storage Write API knows a new name only minutes later",
        ),
    ],
)
def test_a_sink_that_cannot_rename_and_drop_says_why(sink: Any, reason: str, kind: str) -> None:
    with pytest.raises(UsageError, match=f"cannot keep {kind}=evolve: add {kind}=.*{reason}"):
        sink(schema_changes=("evolve", f"{kind}=evolve"))


def test_a_log_of_json_has_no_columns_that_change() -> None:
    check_plain("stop", "a change log")
    with pytest.raises(UsageError, match="leave out 'orders.add=stop'"):
        check_plain(("evolve", "orders.add=stop"), "a change log")


def test_the_page_has_the_table_of_what_each_sink_can_keep() -> None:
    lines = [f"| Kind | {' | '.join(SINKS)} |", "|---" * (len(SINKS) + 1) + "|"]
    for kind in KINDS:
        cells = (", ".join(abilities.get(kind, ())) or "not seen" for abilities in SINKS.values())
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    page = Path(__file__).parents[3] / "docs/schema-changes.md"
    assert "\n".join(lines) in page.read_text(), "\n".join(["the page needs:", *lines])


# --- what each policy does ------------------------------------------------------------------------------------------

REFUSED = SchemaChangedError
CELLS: dict[tuple[str, Policy], Any] = {
    ("add", "evolve"): SchemaChange(added=(N,)),
    ("add", "try_evolve"): SchemaChange(added=(N,)),
    ("add", "lenient"): SchemaChange(added=(N,)),
    ("add", "ignore"): SchemaChange(ignored=frozenset({"n"})),
    ("add", "stop"): REFUSED,
    ("widen", "evolve"): SchemaChange(widened=(N_WIDE,)),
    ("widen", "try_evolve"): SchemaChange(widened=(N_WIDE,)),
    ("widen", "lenient"): SchemaChange(widened=(N_WIDE,)),
    ("widen", "ignore"): SchemaChange(),
    ("widen", "stop"): REFUSED,
    ("type", "try_evolve"): REFUSED,
    ("type", "lenient"): SchemaChange(added=(Column("n__string", TEXT),)),
    ("type", "ignore"): SchemaChange(),
    ("type", "stop"): REFUSED,
    ("narrow", "lenient"): SchemaChange(),
    ("narrow", "ignore"): SchemaChange(),
    ("narrow", "stop"): REFUSED,
    ("drop", "lenient"): SchemaChange(),
    ("drop", "ignore"): SchemaChange(),
}
CHANGES: dict[str, tuple[tuple[Column, ...], tuple[Column, ...]]] = {
    "add": ((ID,), (ID, N)),
    "widen": ((ID, N), (ID, N_WIDE)),
    "type": ((ID, N), (ID, N_TEXT)),
    "narrow": ((ID, N_WIDE), (ID, N)),
    "drop": ((ID, N), (ID,)),
}


def outcome(target: tuple[Column, ...], source: tuple[Column, ...], policies: ChangePolicies) -> SchemaChange:
    """Return how a table of columns changes; the two steps of a sink."""
    types = {column.name: column.type for column in target}
    joined, _ = one_schema("t", types, [TableSchema(source)], policies)
    return plan_schema_change("t", types, joined, policies)


@pytest.mark.parametrize(("kind", "policy"), CELLS)
def test_each_policy_does_what_the_page_says(kind: str, policy: Policy) -> None:
    target, source = CHANGES[kind]
    policies, expected = of(f"{kind}={policy}"), CELLS[kind, policy]
    if expected is REFUSED:
        with pytest.raises(SchemaChangedError):
            outcome(target, source, policies)
    else:
        assert outcome(target, source, policies) == expected
    # The other kinds and the other tables keep their policies.
    for other in CHANGES.keys() - {kind}:
        assert _kept(other, policies) == _kept(other, EVOLVE)
    assert of(f"visits.{kind}={policy}") == EVOLVE


def _kept(kind: str, policies: ChangePolicies) -> Any:
    try:
        return outcome(*CHANGES[kind], policies)
    except SchemaChangedError:
        return REFUSED


def test_every_cell_that_a_sink_can_keep_and_see_is_tested() -> None:
    """Renames and drops that a target follows are in `test_column_numbers.py` and in the tests of the sinks."""
    for abilities in SINKS.values():
        for kind, policies in abilities.items():
            if kind in CHANGES.keys() - {"drop"}:
                assert all((kind, policy) in CELLS for policy in policies)


# --- lenient --------------------------------------------------------------------------------------------------------

LENIENT = of("lenient")
TYPES = [SMALL, BIG, TEXT, ColumnType(Kind.BOOL), ColumnType(Kind.ARRAY, element=BIG)]


@given(
    types=st.lists(st.sampled_from(TYPES), min_size=1, max_size=6),
    epochs=st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_lenient_keeps_the_newest_value_in_one_column_of_its_type(
    types: list[ColumnType], epochs: list[int]
) -> None:
    """A column changes its type again and again, and the row is updated after each change, in epochs of any length."""
    target: dict[str, ColumnType] = {}
    row: dict[str, Any] = {}
    changes = list(enumerate(types))
    while changes:
        epoch, changes = changes[: epochs[0]], changes[epochs[0] :]
        epochs = epochs[1:] + epochs[:1]
        schemas = [TableSchema((ID, Column("n", type_))) for _, type_ in epoch]
        joined, adaptations = one_schema("t", target, dict.fromkeys(schemas), LENIENT)
        change = plan_schema_change("t", target, joined, LENIENT)
        target |= {column.name: column.type for column in (*change.added, *change.widened)}
        for schema, (number, type_) in zip(schemas, epoch, strict=True):
            row |= adaptations[schema].image({"id": 1, "n": number}) or {}
            values = {name: value for name, value in row.items() if name != "id" and value is not None}
            assert list(values.values()) == [number]
            (name,) = values
            held = target[name]
            assert held.kind is type_.kind or {held.kind, type_.kind} == {Kind.INT32, Kind.INT64}


def test_lenient_leaves_columns_alone_that_were_not_sent() -> None:
    schema = TableSchema((ID, N_TEXT))
    _, adaptations = one_schema("t", {"id": BIG, "n": SMALL}, [schema], LENIENT)
    assert adaptations[schema].image({"id": 1, "n": "x"}) == {"id": 1, "n__string": "x", "n": None}
    assert adaptations[schema].image({"id": 1}) == {"id": 1}
    assert adaptations[schema].image(None) is None


def test_lenient_moves_no_column_of_the_key_and_no_column_over_another_one() -> None:
    with pytest.raises(SchemaChangedError, match="primary key cannot be left out"):
        one_schema("t", {"id": TEXT}, [TableSchema((ID,))], LENIENT)
    taken = TableSchema((ID, N_TEXT, Column("n__string", TEXT)))
    with pytest.raises(SchemaChangedError, match="rename that column"):
        one_schema("t", {"id": BIG, "n": SMALL}, [taken], LENIENT)
