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
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.pipelines.source_to_sink import build, main
from penstock.pipelines.sources import SOURCES
from penstock.templates.template import templates

KINDS = pytest.mark.parametrize(("name", "kind"), SINKS.items())


@KINDS
def test_the_options_of_a_sink_are_what_its_templates_say(name: str, kind: SinkKind) -> None:
    known = arguments_of(kind.transform())
    for source in kind.systems:
        shown = templates()[f"{source}-to-{name}"].parameters
        for argument in kind.arguments():
            parameter = shown[kind.parameter(argument)]
            assert known[argument].help, f"{argument} has no docstring"
            assert parameter.help == known[argument].help
            assert parameter.required == (known[argument].default is inspect.Parameter.empty)
            if known[argument].choices:
                assert parameter.choices == known[argument].choices


@KINDS
def test_no_parameter_of_a_sink_hides_one_of_a_source(name: str, kind: SinkKind) -> None:
    for source in kind.systems:
        assert not kind.parameters().keys() & SOURCES[source].arguments().keys()


def test_every_source_can_be_written_to_every_sink() -> None:
    for source in SOURCES:
        assert {f"{source}-to-{sink}" for sink, kind in SINKS.items() if source in kind.systems} <= set(
            templates()
        )


def labels(source: str, sink: str, **given: Any) -> set[str]:
    pipeline = beam.Pipeline()
    build(pipeline, source, sink, given)
    proto = pipeline.to_runner_api()
    return {each.unique_name for each in proto.components.transforms.values()}


STREAM = {"project": "p", "instance": "i", "database": "d", "change_stream": "All"}


def test_the_pipeline_reads_chooses_and_writes(tmp_path: Any) -> None:
    found = labels(
        "spanner",
        "delta",
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
        "spanner",
        sink,
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
    given = {**STREAM, **target, "max_dead_letters": 10}
    found = labels("spanner", sink, **given, dead_letters=str(tmp_path / "letters"))
    assert "LimitOfDeadLetters" in found
    with pytest.raises(UsageError, match="max_dead_letters needs dead_letters"):
        build(beam.Pipeline(), "spanner", sink, given)


@pytest.mark.parametrize("sink", ["files", "delta", "kafka"])
def test_notifications_of_snapshots_are_written_to_their_folder(tmp_path: Any, sink: str) -> None:
    stream = {"dsn": "dbname=shop", "publication": "p", "slot": "s", "snapshot": "initial"}
    target = {
        "files": {"output": str(tmp_path)},
        "delta": {"uri": str(tmp_path)},
        "kafka": {"bootstrap_servers": "localhost:9"},
    }[sink]
    plain = labels("postgres", sink, **stream, **target)
    logged = labels("postgres", sink, **stream, **target, notification_log="/n")
    assert "ReadChangeStream/Notifications" in logged - plain


def test_without_dead_letters_there_is_no_error_output(tmp_path: Any) -> None:
    found = labels("spanner", "parquet", **STREAM, output=str(tmp_path))
    assert "Write" in found
    assert "WriteDeadLetters" not in found


def test_a_replica_of_bigtable_is_refused_before_the_start(tmp_path: Any) -> None:
    stream = {"project": "p", "instance": "i", "table": "t"}
    with pytest.raises(UsageError, match="mode=log"):
        labels("bigtable", "delta", **stream, uri=str(tmp_path))
    assert "Write" in labels("bigtable", "delta", **stream, uri=str(tmp_path), mode="log")


def test_a_change_feed_of_bigtable_is_refused_before_the_start(tmp_path: Any) -> None:
    stream = {"project": "p", "instance": "i", "table": "t"}
    with pytest.raises(UsageError, match="a change feed cannot show them"):
        labels("bigtable", "parquet", **stream, output=str(tmp_path), layout="table")
    with pytest.raises(UsageError, match="a change feed cannot show them"):
        labels("bigtable", "delta", **stream, uri=str(tmp_path), mode="log", layout="table")


def test_an_unknown_or_missing_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="no parameter 'urii'; did you mean 'uri'"):
        labels("spanner", "delta", **STREAM, uri="/t", urii="/t")
    with pytest.raises(TypeError, match="missing: uri"):
        labels("spanner", "delta", **STREAM)


def test_a_sink_that_does_not_take_the_changes_of_a_source_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no Bigtable changes"):
        labels("bigtable", "spanner")


def test_options_of_native_lines_are_refused_with_a_format() -> None:
    stream = {"project": "p", "instance": "i", "table": "t", "output": "/o"}
    assert "ToLines" in labels("bigtable", "files", **stream, shape="row", base64=True)
    with pytest.raises(UsageError, match="base64: for native lines only"):
        labels("bigtable", "files", **stream, format="debezium", shape="change-log", base64=True)
    with pytest.raises(UsageError, match="shape 'line' does not exist"):
        labels("bigtable", "files", **stream, shape="line")


def test_the_program_says_which_pipelines_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spanner-to-punched-cards"]) == 2
    assert (
        "SINK is avro, bigquery, bigtable, delta, files, iceberg, kafka, parquet, postgresql, pubsub, spanner"
        in capsys.readouterr().err
    )
