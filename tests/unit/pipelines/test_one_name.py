"""One parameter has one name, one unit and one default: in transforms, build functions, templates and docs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.io import bigtable, change_streams, spanner
from penstock.io.bigtable import ReadFromBigtableChangeStream, ReadFromBigtableTable
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.options import arguments_of
from penstock.pipelines.parameters import parameters_of
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.sources import SOURCES as SOURCES_OF_PIPELINES
from penstock.pipelines.sources import SourceKind
from penstock.templates import templates

SOURCES = (ReadFromSpannerChangeStream, ReadFromBigtableChangeStream)
COMMON = {
    "start", "end", "heartbeat_seconds", "unavailable_seconds", "max_concurrent_partitions", "buffer_bytes",
    "idle_stream_seconds", "credentials", "emulator_host", "api_endpoint",
}  # fmt: skip


def test_sources_take_the_parameters_that_they_share_with_one_type_and_default() -> None:
    ours, theirs = map(arguments_of, SOURCES)
    assert COMMON | {"project", "instance"} <= ours.keys() & theirs.keys()
    for name in ours.keys() & theirs.keys() - {"max_concurrent_partitions"}:
        assert (ours[name].type, ours[name].default) == (theirs[name].type, theirs[name].default), name


@pytest.mark.parametrize(
    "kind", [*SOURCES_OF_PIPELINES.values(), *SINKS.values()], ids=[*SOURCES_OF_PIPELINES, *SINKS]
)
def test_a_pipeline_takes_the_options_of_the_transforms_of_its_source_and_sink(
    kind: SourceKind | SinkKind,
) -> None:
    known = arguments_of(kind.transform())
    for name, each in kind.arguments().items():
        assert (known[name].type, known[name].default) == (each.type, each.default), name
    if kind is not SINKS["files"]:  # whose options have limits that the transform has not
        assert issubclass(cast(type, kind.transform()), kind.options)
    assert kind.secrets <= kind.arguments().keys()


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
    assert filters & parameters_of("spanner", "files").every.keys() == {
        "mod_types",
        "exclude_transaction_tags",
    }
    assert filters & parameters_of("bigtable", "files").every.keys() == {"operations"}
    assert filters & parameters_of("postgres", "files").every.keys() == {"operations"}
