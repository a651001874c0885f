"""One definition for all pairs of source and sink: what a template says is what the transform takes."""

from __future__ import annotations

import inspect
from typing import Any

import apache_beam as beam
import pytest

from penstock.errors import UsageError
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.filter import Selection
from penstock.options import arguments_of
from penstock.pipelines.postgres_to_files import postgres_to_files
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.source_to_sink import build_function, main
from penstock.pipelines.sources import SOURCES
from penstock.templates.template import templates

KINDS = pytest.mark.parametrize(("name", "kind"), SINKS.items())


@KINDS
def test_the_signature_and_the_docstring_of_a_sink_are_what_its_templates_say(
    name: str, kind: SinkKind
) -> None:
    known = arguments_of(kind.load())
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        for argument in kind.names:
            parameter = shown[kind.parameter(argument)]
            assert known[argument].help, f"{argument} is not in the docstring"
            assert parameter.help == known[argument].help
            assert parameter.required == (known[argument].default is inspect.Parameter.empty)
            if known[argument].choices:
                assert parameter.choices == known[argument].choices


@KINDS
def test_no_parameter_of_a_sink_hides_one_of_a_source(name: str, kind: SinkKind) -> None:
    for source in kind.systems:
        assert not kind.arguments().keys() & SOURCES[source].parameters().keys()


def test_every_source_can_be_written_to_every_sink() -> None:
    for source in SOURCES:
        assert {f"{source}-to-{sink}" for sink, kind in SINKS.items() if source in kind.systems} <= set(
            templates()
        )


def labels(build: Any, **given: Any) -> set[str]:
    pipeline = beam.Pipeline()
    build(pipeline, **given)
    proto = pipeline.to_runner_api()
    return {each.unique_name for each in proto.components.transforms.values()}


STREAM = {"project": "p", "instance": "i", "database": "d", "change_stream": "All"}


def test_the_pipeline_reads_chooses_and_writes(tmp_path: Any) -> None:
    found = labels(
        build_function("spanner", "delta"),
        **STREAM,
        uri=f"{tmp_path}/{{table}}",
        without_columns=["Note"],
        dead_letters=str(tmp_path / "letters"),
    )
    assert {"ReadChangeStream", "ToChangeEvents", "WithoutColumns(*)", "Write", "WriteDeadLetters"} <= found


@pytest.mark.parametrize("sink", ["delta", "kafka"])
@pytest.mark.parametrize("materialize_rows", [False, True])
def test_the_source_filters_unless_rows_are_materialized_from_all_of_their_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, sink: str, materialize_rows: bool
) -> None:
    read: list[Selection] = []
    expand = ReadFromSpannerChangeStream.expand
    monkeypatch.setattr(
        ReadFromSpannerChangeStream, "expand", lambda self, p: read.append(self.selection) or expand(self, p)
    )
    target = {"delta": {"uri": str(tmp_path)}, "kafka": {"bootstrap_servers": "localhost:9"}}[sink]
    found = labels(
        build_function("spanner", sink),
        **STREAM,
        **target,
        mod_types=["UPDATE"],
        materialize_rows=materialize_rows,
    )
    assert read == [Selection(mod_types=frozenset() if materialize_rows else frozenset({"UPDATE"}))]
    assert ("FilterChanges" in found) is materialize_rows


@pytest.mark.parametrize("sink", ["delta", "kafka"])
def test_the_pipeline_stops_at_max_dead_letters_of_all_steps_together(tmp_path: Any, sink: str) -> None:
    target = {"delta": {"uri": str(tmp_path)}, "kafka": {"bootstrap_servers": "localhost:9"}}[sink]
    build = build_function("spanner", sink)
    found = labels(build, **STREAM, **target, dead_letters=str(tmp_path / "letters"), max_dead_letters=10)
    assert "LimitOfDeadLetters" in found
    with pytest.raises(UsageError, match="max_dead_letters needs dead_letters"):
        build(beam.Pipeline(), **STREAM, **target, max_dead_letters=10)


@pytest.mark.parametrize("sink", ["files", "delta", "kafka"])
def test_notifications_of_snapshots_are_written_to_their_folder(tmp_path: Any, sink: str) -> None:
    stream = {"dsn": "dbname=shop", "publication": "p", "slot": "s", "snapshot": "initial"}
    target = {
        "files": {"output": str(tmp_path)},
        "delta": {"uri": str(tmp_path)},
        "kafka": {"bootstrap_servers": "localhost:9"},
    }[sink]
    build = postgres_to_files if sink == "files" else build_function("postgres", sink)
    plain, logged = (
        labels(build, **stream, **target),
        labels(build, **stream, **target, notification_log="/n"),
    )
    assert "ReadChangeStream/Notifications" in logged - plain


def test_without_dead_letters_there_is_no_error_output(tmp_path: Any) -> None:
    found = labels(build_function("spanner", "parquet"), **STREAM, output=str(tmp_path))
    assert "Write" in found
    assert "WriteDeadLetters" not in found


def test_a_replica_of_bigtable_is_refused_before_the_start(tmp_path: Any) -> None:
    stream = {"project": "p", "instance": "i", "table": "t"}
    with pytest.raises(UsageError, match="mode=log"):
        build_function("bigtable", "delta")(beam.Pipeline(), **stream, uri=str(tmp_path))
    assert "Write" in labels(build_function("bigtable", "delta"), **stream, uri=str(tmp_path), mode="log")


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="urii"):
        build_function("spanner", "delta")(beam.Pipeline(), **STREAM, uri="/t", urii="/t")


def test_the_program_says_which_pipelines_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spanner-to-punched-cards"]) == 2
    assert (
        "SINK is avro, bigquery, bigtable, delta, iceberg, kafka, parquet, postgresql, pubsub, spanner"
        in capsys.readouterr().err
    )
