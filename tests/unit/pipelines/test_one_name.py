"""One parameter has one name, one unit and one default: in transforms, build functions, templates and docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock.io import bigtable, change_streams, spanner
from penstock.io.bigtable import ReadFromBigtableChangeStream, ReadFromBigtableTable
from penstock.io.files import WriteToJsonLines
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.options import arguments_of
from penstock.pipelines.bigtable_to_files import bigtable_to_files
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.postgres_to_files import postgres_to_files
from penstock.pipelines.spanner_to_files import spanner_to_files
from penstock.pipelines.ydb_to_files import ydb_to_files
from penstock.templates import templates
from penstock.transforms.formats.catalog import CATALOG

SOURCES = (ReadFromSpannerChangeStream, ReadFromBigtableChangeStream)
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


def test_sources_take_the_parameters_that_they_share_with_one_type_and_default() -> None:
    ours, theirs = map(arguments_of, SOURCES)
    assert COMMON | {"project", "instance"} <= ours.keys() & theirs.keys()
    for name in ours.keys() & theirs.keys() - {"max_concurrent_partitions"}:
        assert (ours[name].type, ours[name].default) == (theirs[name].type, theirs[name].default), name


@pytest.mark.parametrize(("build", "transform", "own"), PIPELINES)
def test_a_pipeline_passes_each_parameter_on_under_its_name_and_default(
    build: Callable[..., Any], transform: type, own: set[str]
) -> None:
    known = {**arguments_of(WriteToJsonLines), **arguments_of(transform)}
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


def test_the_bigtable_table_takes_the_parameters_of_the_change_stream() -> None:
    table, stream = arguments_of(ReadFromBigtableTable), arguments_of(ReadFromBigtableChangeStream)
    for name, each in table.items():
        assert (each.type, each.default) == (stream[name].type, stream[name].default), name
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
