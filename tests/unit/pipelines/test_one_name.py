"""One parameter has one name, one unit and one default: in transforms, build functions, templates and docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.io import bigtable, change_streams, spanner
from penstock.io.bigtable import ReadFromBigtableChangeStream, ReadFromBigtableTable
from penstock.io.change_streams.settings import Limits
from penstock.io.files import WriteToJsonLines
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.pipelines.bigtable_to_files import bigtable_to_files
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.postgres_to_files import postgres_to_files
from penstock.pipelines.spanner_to_files import spanner_to_files
from penstock.pipelines.ydb_to_files import ydb_to_files
from penstock.templates import templates
from penstock.transforms.formats.catalog import CATALOG

DOCS = Path(__file__).parents[3] / "docs"
SOURCES = [(ReadFromSpannerChangeStream, "spanner.md"), (ReadFromBigtableChangeStream, "bigtable.md")]
PIPELINES = [
    (spanner_to_files, ReadFromSpannerChangeStream, {"output", "lineage_log"}),
    (bigtable_to_files, ReadFromBigtableChangeStream, {"output", "lineage_log", "shape", "base64"}),
    (postgres_to_files, ReadFromPostgresChangeStream, {"output"}),
    (ydb_to_files, ReadFromYdbChangefeed, {"output", "lineage_log"}),
]
FORMATS = {entry.name for entry in CATALOG}
COMMON = {
    "start", "end", "heartbeat_seconds", "unavailable_seconds", "max_concurrent_partitions", "buffer_bytes",
    "idle_stream_seconds", "credentials", "emulator_host", "api_endpoint",
}  # fmt: skip


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: each for name, each in found.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}


def test_both_sources_take_the_common_parameters_with_one_type() -> None:
    ours, theirs = (parameters(transform) for transform, _ in SOURCES)
    assert COMMON | {"project", "instance"} <= ours.keys() & theirs.keys()
    for name in ours.keys() & theirs.keys():
        assert ours[name].annotation == theirs[name].annotation, name
        if name != "max_concurrent_partitions":  # a query and a stream cost the service different amounts
            assert ours[name].default == theirs[name].default, name


def test_limits_have_the_names_of_the_parameters() -> None:
    assert set(inspect.signature(Limits).parameters) <= COMMON
    for transform, _ in SOURCES:
        for name, each in inspect.signature(Limits.checked).parameters.items():
            if name in COMMON - {"max_concurrent_partitions"}:
                assert parameters(transform)[name].default == each.default


@pytest.mark.parametrize(("build", "transform", "own"), PIPELINES)
def test_a_pipeline_passes_each_parameter_on_under_its_name_and_default(
    build: Callable[..., Any], transform: type, own: set[str]
) -> None:
    known = {**parameters(WriteToJsonLines), **parameters(transform)}
    own = {*own, *EventOptions.__dataclass_fields__, *FORMATS}
    for name, each in parameters(build).items():
        if name not in own:
            assert name in known, f"{name} is no parameter of the transforms"
            assert each.default == known[name].default, name


@pytest.mark.parametrize("template", templates().values(), ids=lambda template: template.name)
def test_times_and_sizes_of_a_template_say_their_unit(template: Any) -> None:
    for name, parameter in template.parameters.items():
        if parameter.type == "number":
            assert name.endswith("_seconds"), name
            assert "in seconds" in parameter.help


@pytest.mark.parametrize(("transform", "page"), SOURCES)
def test_the_docs_and_the_docstring_list_exactly_the_parameters(transform: type, page: str) -> None:
    text = (DOCS / page).read_text()
    table = text.partition("\n## Arguments\n")[2].partition("\n## ")[0]
    listed = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert listed == set(parameters(transform))
    documented = inspect.getdoc(transform) or ""
    named = re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*): ", documented, re.MULTILINE)
    assert {name for names in named for name in names.split(", ")} == set(parameters(transform))


def test_the_bigtable_table_takes_the_parameters_of_the_change_stream() -> None:
    table, stream = parameters(ReadFromBigtableTable), parameters(ReadFromBigtableChangeStream)
    for name, each in table.items():
        assert (each.annotation, each.default) == (stream[name].annotation, stream[name].default), name
    assert {"emulator_host", "api_endpoint", "unavailable_seconds"} <= table.keys()


@pytest.mark.parametrize(
    "transform",
    [
        ReadFromSpannerChangeStream(project="p", instance="i", database="d", change_stream="S"),
        ReadFromBigtableChangeStream(project="p", instance="i", table="t"),
        ReadFromBigtableTable(project="p", instance="i", table="t"),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_every_source_has_display_data_and_a_check(transform: Any) -> None:
    assert transform.display_data()
    assert callable(transform.check)


@pytest.mark.parametrize("package", [spanner, bigtable])
def test_names_that_reach_users_are_exported(package: Any) -> None:
    names = set(package.__all__)
    assert {"ChangeStreamError", "DecodeError", "LineageError", "UnavailableError"} <= names
    record = {spanner: "DataChangeRecord", bigtable: "ChangeStreamMutation"}[package]
    assert {record, f"{record}Coder", "ChangeStream"} <= names
    assert not hasattr(change_streams, "__all__"), "the shared parts are internal"


def test_a_filter_has_one_name() -> None:
    """The source of Spanner filters by mod_types and exclude_transaction_tags, also with format=native."""
    filters = {"mod_types", "exclude_transaction_tags", "operations", "without_tags"}
    assert filters & parameters(spanner_to_files).keys() == {"mod_types", "exclude_transaction_tags"}
    assert filters & parameters(bigtable_to_files).keys() == {"operations"}
    assert filters & parameters(postgres_to_files).keys() == {"operations"}
