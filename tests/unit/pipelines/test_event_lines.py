"""The choices about events in a pipeline: which lines come out, and what is refused before the start."""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from penstock.errors import UsageError
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.filter import Selection
from penstock.io.spanner.record import DataChangeRecord, Mod
from penstock.pipelines.bigtable_to_files import bigtable_to_files
from penstock.pipelines.event_lines import EventLines
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.spanner_filters import filtering_after_rows
from penstock.pipelines.spanner_to_files import spanner_to_files
from penstock.preflight import preflight
from penstock.transforms.formats.lines import Line
from tests.unit.events.test_spanner_events import COLUMNS, KEY, record

SHOP = SimpleNamespace(project="p", instance="i", database="shop", change_stream="feed")
SPANNER = {"project": "my-project", "instance": "main", "database": "shop", "change_stream": "All"}
BIGTABLE = {"project": "my-project", "instance": "main", "table": "users"}


seen: list[dict[str, Any]] = []


class NoteFn(beam.DoFn):
    """Notes each line."""

    def process(self, line: Line) -> None:
        seen.append(json.loads(line.line))


def lines(*records: Any, **choices: Any) -> list[dict[str, Any]]:
    """Return the lines of records in a format, on a runner of Beam."""
    seen.clear()
    made = transform(**choices)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(list(records)) | made | "Note" >> beam.ParDo(NoteFn())
    return list(seen)


def transform(capture: str = "OLD_AND_NEW_VALUES", **choices: Any) -> EventLines:
    return EventLines(EventOptions.of("spanner", choices), "spanner", SHOP, lambda: capture, 2)


def change(name: str = "Ada", **changed: Any) -> Any:
    return record(Mod(KEY, json.dumps({"Name": name}), "{}"), **changed)


def test_columns_are_filtered_masked_and_renamed_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "a secret of 16 bytes")
    (line,) = lines(
        change("Ada"),
        change("Bob"),
        format="ydb",
        where="Name == 'Ada'",
        mask_columns={"Orders.Name": "truncate:1"},
        rename_columns={"Name": "name"},
    )
    assert line["update"] == {"name": "A"}
    (line,) = lines(change("Ada"), format="ydb", mask_columns={"Name": "hash"}, mask_key="${env:MASK_KEY}")
    assert len(line["update"]["Name"]) == 64


def test_operations_are_chosen() -> None:
    records = [change("a", mod_type="INSERT"), change("c", mod_type="UPDATE")]
    found = lines(*records, format="ydb", operations=["UPDATE"])
    assert [line["update"]["Name"] for line in found] == ["c"]


def test_a_row_is_complete_although_its_first_change_is_not_written() -> None:
    records = [
        record(Mod(KEY, '{"Name":"a","Price":"1"}', "{}"), mod_type="INSERT"),
        one_later(record(Mod(KEY, '{"Name":"b"}', '{"Name":"a"}'))),
    ]
    (line,) = lines(
        *records, format="ydb", ydb={"mode": "NEW_IMAGE"}, materialize_rows=True, operations=["UPDATE"]
    )
    assert line["newImage"] == {"Name": "b", "Price": "1"}


def test_filters_of_the_source_run_after_rows_are_complete() -> None:
    """Otherwise the source would hide changes that a row consists of."""
    source = ReadFromSpannerChangeStream(
        **SPANNER, tables=["Orders"], mod_types=["UPDATE", "DELETE"], exclude_transaction_tags=["backfill"]
    )
    events = EventOptions(format="ydb", materialize_rows=True)
    source, events = filtering_after_rows(source, events)
    assert source.selection == Selection.checked(["Orders"], (), ())
    assert events.operations == ["DELETE", "UPDATE", "READ"]
    assert events.without_tags == ["backfill"]


@pytest.mark.parametrize("materialize_rows", [False, True])
def test_a_pipeline_filters_in_the_source_unless_rows_are_materialized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, materialize_rows: bool
) -> None:
    read: list[Selection] = []
    expand = ReadFromSpannerChangeStream.expand
    monkeypatch.setattr(
        ReadFromSpannerChangeStream,
        "expand",
        lambda self, begin: read.append(self.selection) or expand(self, begin),
    )
    choices = {"format": "ydb", "mod_types": ["UPDATE"], "materialize_rows": materialize_rows}
    spanner_to_files(beam.Pipeline(), **SPANNER, output=str(tmp_path), **choices)
    assert read == [Selection(mod_types=frozenset() if materialize_rows else frozenset({"UPDATE"}))]


def one_later(change: Any) -> Any:
    return dataclasses.replace(
        change, commit_timestamp=change.commit_timestamp + 1, server_transaction_id="u"
    )


def test_a_change_that_cannot_be_shown_goes_to_the_dead_letters(tmp_path: Path) -> None:
    bad = record(Mod(KEY, '{"Price":"x"}', "{}"))
    folder = tmp_path / "dead"
    found = lines(change("a"), bad, format="ydb", dead_letters=str(folder))
    assert [line["update"] for line in found] == [{"Name": "a"}]
    (file,) = folder.glob("dead-letters/*/*.jsonl")
    letter = json.loads(file.read_text())
    assert "column Price of table Orders" in letter["reason"]
    assert b64decode(letter["data"]) == registry.get_coder(DataChangeRecord).encode(bad)


def test_a_secret_is_read_before_the_start_but_not_needed_to_validate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hash_ = {"format": "ydb", "mask_columns": {"Email": "hash"}, "mask_key": "${env:MASK_KEY}"}
    made = transform(**hash_)
    with pytest.raises(UsageError, match="MASK_KEY is not set"):
        made.check()
    monkeypatch.setenv("MASK_KEY", "short")
    with pytest.raises(UsageError, match="at least 16 bytes"):
        made.check()
    monkeypatch.setenv("MASK_KEY", "a secret of 16 bytes")
    made.check()


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        (
            {"mask_columns": {"Email": "hash"}},
            "mask_columns: native lines are written as the source sent them",
        ),
        ({"debezium": {"schemas_enable": True}}, "debezium: native lines"),
        ({"format": "ydb", "mask_columns": {"Email": "hash"}}, "needs a secret key: set mask_key"),
        ({"format": "ydb", "mask_columns": {"Email": "hide"}}, "use hash, redact or truncate:N"),
        ({"format": "ydb", "mask_columns": {"Email": "truncate"}}, "use hash, redact or truncate:N"),
        ({"format": "debezium", "barrier_seconds": 1}, "barriers are for format ydb only"),
        (
            {"format": "ydb", "ydb": {"mode": "NEW_IMAGE", "format": "DEBEZIUM_JSON"}, "barrier_seconds": 1},
            "DEBEZIUM_JSON has no barriers",
        ),
        ({"format": "ydb", "only_columns": ["Orders.State", "Id"]}, "every column with its table"),
        ({"format": "ydb", "lines": "rows"}, "lines 'rows' does not exist"),
        (
            {"format": "debezium", "schema_events": True},
            "format debezium has no record for a change of columns",
        ),
        (
            {
                "format": "envelope",
                "envelope": {"converter": "avro", "registry_url": "http://localhost"},
                "schema_events": True,
            },
            "records with schemas tell their columns",
        ),
    ],
)
def test_choices_that_cannot_work_are_refused(choices: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        transform(**choices)


def test_a_mode_that_the_capture_type_cannot_satisfy_is_refused_before_the_start() -> None:
    image = {"format": "ydb", "ydb": {"mode": "NEW_IMAGE"}}
    with pytest.raises(UsageError, match="use capture type NEW_ROW or .*; or set materialize_rows=true"):
        transform(**image).check()
    transform("NEW_ROW", **image).check()
    transform(**image, materialize_rows=True).check()
    with pytest.raises(UsageError, match="NEW_AND_OLD_IMAGES cannot be made from OLD_AND_NEW_VALUES"):
        transform(format="cloudevents", cloudevents={"data_format": "dynamodb"}).check()


def test_schema_events_are_refused_where_records_do_not_have_all_columns() -> None:
    asked = {"format": "change_feed", "schema_events": True}
    with pytest.raises(
        UsageError, match="OLD_AND_NEW_VALUES have only the columns that their mutation wrote"
    ):
        transform(**asked).check()
    transform("NEW_ROW", **asked).check()


def test_each_shard_is_told_of_the_columns_that_are_chosen_and_renamed() -> None:
    first = record(Mod(KEY, '{"Name":"a","Price":"1"}', "{}"), capture="NEW_ROW")
    more = {**COLUMNS, "Extra": "BOOL"}
    second = one_later(record(Mod(KEY, '{"Name":"a","Extra":true}', "{}"), capture="NEW_ROW", columns=more))
    found = lines(
        first,
        second,
        capture="NEW_ROW",
        format="change_feed",
        schema_events=True,
        without_columns=["Price"],
        rename_columns={"Name": "name"},
    )
    kinds = [line["_change_type"] for line in found]
    assert kinds == ["schema", "schema", "update_postimage"] * 2
    assert [each["name"] for each in found[3]["_columns"]] == ["Region", "Id", "name", "Extra"]
    assert found[3]["_columns_before"] == found[0]["_columns"]


def test_the_preflight_asks_for_the_capture_type_only_if_the_format_depends_on_it() -> None:
    asked: list[str] = []

    def capture() -> str:
        asked.append("asked")
        return "NEW_ROW"

    for name in ("debezium", "ydb"):
        pipeline = beam.Pipeline()
        options = EventOptions.of("spanner", {"format": name})
        _ = pipeline | beam.Create([change()]) | EventLines(options, "spanner", SHOP, capture, 1)
        preflight(pipeline)
    assert asked == ["asked"]


def test_the_remedy_names_modes_of_the_format_only() -> None:
    with pytest.raises(UsageError, match="or mode KEYS_ONLY; or set materialize_rows"):
        transform(format="dynamodb").check()


def test_bigtable_refuses_an_image_when_the_pipeline_is_built(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NEW_IMAGE cannot be made from Bigtable"):
        bigtable_to_files(
            beam.Pipeline(), **BIGTABLE, output=str(tmp_path), format="ydb", ydb={"mode": "NEW_IMAGE"}
        )
    with pytest.raises(UsageError, match="shape: for native lines only"):
        bigtable_to_files(beam.Pipeline(), **BIGTABLE, output=str(tmp_path), format="ydb", shape="row")


def test_a_pipeline_takes_plain_arguments_and_refuses_unknown_ones(tmp_path: Path) -> None:
    pipeline = beam.Pipeline()
    spanner_to_files(
        pipeline, **SPANNER, output=str(tmp_path), format="debezium", debezium={"server": "x"}, shards=2
    )
    with pytest.raises(TypeError, match="there is no parameter 'tabels'; did you mean 'tables'"):
        spanner_to_files(beam.Pipeline(), **SPANNER, output=str(tmp_path), tabels=["x"])
    with pytest.raises(TypeError, match="missing: project, instance"):
        spanner_to_files(beam.Pipeline(), output=str(tmp_path))
