"""Choices about tables and columns are compared with the tables of the source before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pipeline import PipelineVisitor

from penstock.datasets import Dataset, ReadTable
from penstock.errors import SeveralProblemsError, UsageError
from penstock.event import Source
from penstock.io.staging.publish_epochs import PublishEpochs
from penstock.pipelines.choices_check import check_choices, nan_warnings
from penstock.pipelines.event_lines import FormatCheck
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.source_to_sink import build
from penstock.preflight import preflight
from penstock.tables import SourceTable
from penstock.transforms.expression import RowExpression
from penstock.transforms.formats.debezium import DebeziumFormat

TABLES = [
    SourceTable("public", "orders", ("id", "state", "amount")),
    SourceTable("public", "customers", ("id", "email")),
]


def found(**choices: Any) -> tuple[list[str], list[str]]:
    options = EventOptions(format="debezium", mask_key="${env:KEY}", **choices)
    return tuple(check_choices(options, TABLES, "publication shop"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        (
            {"without_columns": ["nocol"]},
            "without_columns: no table of publication shop has a column 'nocol'",
        ),
        ({"without_columns": ["Email"]}, "has a column 'Email'; did you mean 'email'?"),
        ({"only_columns": ["orders.email"]}, "only_columns: public.orders has no column 'email'"),
        (
            {"mask_columns": {"customer.email": "hash"}},
            "mask_columns: no table of publication shop matches 'customer'",
        ),
        (
            {"mask_columns": {"public.customers.mail": "redact"}},
            "public.customers has no column 'mail'; did you mean 'email'?",
        ),
        (
            {"rename_columns": {"stat": "status"}},
            "rename_columns: no table of publication shop has a column 'stat'; did you mean 'state'?",
        ),
        ({"where": "nocol > 3"}, "where: no table of publication shop that is read has a column 'nocol'"),
    ],
)
def test_a_name_that_no_table_has_is_a_problem(choices: dict[str, Any], problem: str) -> None:
    problems, warnings = found(**choices)
    assert len(problems) == 1
    assert problem in problems[0]
    assert not warnings


@pytest.mark.parametrize(
    "choices",
    [
        {"without_columns": ["state", "public.orders.amount"]},
        {"mask_columns": {"customers.email": "hash"}, "where": "op != 'DELETE'"},
        {"where": "table != 'orders' or amount > 3"},
        {"where": "sent('email') and email != ''"},
        {"where": "id > 3 and before['id'] == after.id"},
        {"where": "[x for x in [id] if x]"},
    ],
)
def test_names_that_exist_are_no_problem(choices: dict[str, Any]) -> None:
    assert found(**choices) == ([], [])


def test_a_column_that_some_tables_lack_is_a_warning() -> None:
    problems, (warning,) = found(where="state == 'open'")
    assert not problems
    assert warning.startswith(
        "where: public.customers: no column 'state', so the first change of such a table"
    )


def test_an_expression_names_its_columns() -> None:
    assert RowExpression("lower(State) == 'a' and before.Amount > row['f:q'] and key.get('x')").columns == [
        "Amount",
        "State",
        "f:q",
    ]


def test_the_pipeline_is_refused_at_its_start_and_only_warned_when_it_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from penstock.io.postgres import ReadFromPostgresChangeStream

    for name in ("check", "check_start"):
        monkeypatch.setattr(ReadFromPostgresChangeStream, name, lambda self: None)
    for name in ("setup_warnings", "start_warnings"):
        monkeypatch.setattr(ReadFromPostgresChangeStream, name, lambda self: [])
    monkeypatch.setattr(ReadFromPostgresChangeStream, "source_tables", lambda self: TABLES)

    def pipeline(**choices: Any) -> beam.Pipeline:
        made = beam.Pipeline()
        given = {"dsn": "dbname=shop", "publication": "shop", "slot": "s", "uri": f"{tmp_path}/{{table}}"}
        build(made, "postgres", "delta", {**given, **choices})
        return made

    with pytest.raises(SeveralProblemsError, match="(?s)'other'.*'nocol'"):
        preflight(pipeline(only_columns=["other"], without_columns=["nocol"]))
    with pytest.raises(UsageError, match="'nocol'"):
        preflight(pipeline(without_columns=["nocol"]))
    (text,) = preflight(pipeline(without_columns=["nocol"]), resuming=True)
    assert text.startswith("without_columns: no table of publication shop has a column 'nocol'")


VISITS = SourceTable("public", "visits", ("at",), has_key=False)


def about_keys(known: list[SourceTable], **choices: Any) -> tuple[list[str], list[str]]:
    options = EventOptions(format="debezium", **choices)
    return tuple(check_choices(options, known, "publication shop", needs_keys=True))  # type: ignore[return-value]


def test_a_table_without_a_key_is_a_problem_of_a_replica() -> None:
    (problem,), warnings = about_keys([*TABLES, VISITS])
    assert problem.startswith("tables of publication shop without a primary key: public.visits.")
    assert "without_tables" in problem
    assert "mode=log" in problem
    assert not warnings
    assert found()[0] == [], "a log needs no key"
    assert about_keys(TABLES) == ([], [])


def test_with_dead_letters_a_table_without_a_key_is_a_warning() -> None:
    problems, (warning,) = about_keys([*TABLES, VISITS], dead_letters="/letters")
    assert not problems
    assert "all of their changes become dead letters" in warning


@pytest.mark.parametrize(
    ("sink", "given", "refused"),
    [
        ("delta", {"uri": "/t/{table}"}, True),
        ("delta", {"uri": "/t/{table}", "mode": "history"}, True),
        ("delta", {"uri": "/t/{table}", "mode": "log"}, False),
        ("iceberg", {"target_table": "s.{table}"}, True),
        ("postgresql", {"target_dsn": "dbname=x"}, True),
        ("parquet", {"output": "/t"}, False),
        ("kafka", {"bootstrap_servers": "localhost:9"}, False),
    ],
)
def test_a_job_for_a_replica_is_refused_before_its_start(
    monkeypatch: pytest.MonkeyPatch, sink: str, given: dict[str, Any], refused: bool
) -> None:
    from penstock.io.postgres import ReadFromPostgresChangeStream

    monkeypatch.setattr(ReadFromPostgresChangeStream, "source_tables", lambda self: [*TABLES, VISITS])
    pipeline = beam.Pipeline()
    build(pipeline, "postgres", sink, {"dsn": "dbname=shop", "publication": "shop", "slot": "s", **given})
    problems = []
    for part in parts_of(pipeline):
        # The checks of other transforms would ask services.
        if part.__class__.__name__ == "_CheckedConversion":
            try:
                part.check_start()
            except UsageError as error:
                problems.append(str(error))
    assert [("public.visits" in text) for text in problems] == [True] * refused


@pytest.mark.parametrize("mode", ["current", "history"])
def test_partitions_are_checked_before_the_start_for_the_tables_of_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    from penstock.io.postgres import ReadFromPostgresChangeStream

    orders = ReadTable(Source("postgresql", "", "shop", "public", "orders"), Dataset("p", "orders", ("id",)))
    monkeypatch.setattr(ReadFromPostgresChangeStream, "tables_read", lambda self: [orders])
    stream = {"dsn": "dbname=shop", "publication": "shop", "slot": "s"}
    sink = {"uri": f"{tmp_path}/{{table}}", "mode": mode, "partition_by": ["day(at)"]}
    pipeline = beam.Pipeline()
    build(pipeline, "postgres", "delta", {**stream, **sink})
    (publish,) = [part for part in parts_of(pipeline) if isinstance(part, PublishEpochs)]
    with pytest.raises(UsageError, match="orders has no column at"):
        publish.check()


def parts_of(pipeline: beam.Pipeline) -> list[Any]:
    found: list[Any] = []

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: Any) -> None:
            found.append(node.transform)

        def enter_composite_transform(self, node: Any) -> None:
            found.append(node.transform)

    pipeline.visit(Visitor())
    return found


NUMBERS = [
    SourceTable("public", "orders", ("id", "amount", "tax"), decimals=("amount", "tax")),
    SourceTable("public", "visits", ("id", "at")),
]


def told(**choices: Any) -> list[str]:
    return nan_warnings(EventOptions(format="debezium", mask_key="${env:KEY}", **choices), NUMBERS)


def test_columns_in_which_one_nan_stops_the_pipeline_are_told_once_with_the_remedies() -> None:
    (text,) = told()
    assert text.startswith("public.orders.amount, public.orders.tax: ")
    assert "debezium.decimal_handling_mode" in text
    assert "dead_letters" in text
    (text,) = told(without_columns=["orders.tax"])
    assert text.startswith("public.orders.amount: ")


@pytest.mark.parametrize(
    "choices",
    [
        {"dead_letters": "/letters"},
        {"only_columns": ["at"]},
        {"without_columns": ["amount", "tax"]},
        {"mask_columns": {"amount": "redact", "orders.tax": "redact"}},
    ],
)
def test_nothing_is_told_of_numbers_that_cannot_stop_the_pipeline(choices: dict[str, Any]) -> None:
    assert told(**choices) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, True),
        ({"decimal_handling_mode": "string"}, False),
        ({"decimal_handling_mode": "double"}, False),
        ({"debezium_exact": True}, False),
    ],
)
def test_a_pipeline_warns_of_nan_if_its_format_refuses_it(options: dict[str, Any], told: bool) -> None:
    events = EventOptions(format="debezium")
    check = FormatCheck(events, DebeziumFormat("srv", **options), "postgres", str, lambda: NUMBERS)
    assert bool(check.setup_warnings()) is told


@pytest.mark.parametrize(
    ("capture", "options", "schemas", "told"),
    [
        ("NEW_VALUES", {}, True, True),
        ("OLD_AND_NEW_VALUES", {}, True, True),
        ("NEW_ROW", {}, True, False),
        ("NEW_VALUES", {"materialize_rows": True}, True, False),
        ("NEW_VALUES", {}, False, False),
    ],
)
def test_a_schema_that_differs_from_record_to_record_is_told_before_the_start(
    capture: str, options: dict[str, Any], schemas: bool, told: bool
) -> None:
    events = EventOptions(format="debezium", **options)
    format_ = DebeziumFormat("srv", schemas_enable=schemas)
    warnings = FormatCheck(events, format_, "spanner", lambda: capture).setup_warnings()
    assert [capture in text and "materialize_rows" in text for text in warnings] == [True] * told
