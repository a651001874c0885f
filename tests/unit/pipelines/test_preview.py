"""What `penstock run --limit --print` shows: what each sink writes for an event, and a pipeline without its sinks."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import apache_beam as beam
import pytest
from deltalake import DeltaTable

from penstock.event import CellChange, ChangeEvent, ColumnType, Kind, Op, Source
from penstock.io.change_streams.transform import ReadFromChangeStream
from penstock.io.delta.target import DeltaTarget
from penstock.io.staging.publish_epochs import PublishEpochs
from penstock.io.staging.send_after_commit import SendAfterCommit
from penstock.io.staging.transform import WriteStagedFiles
from penstock.pipelines.preview import CHANGE, Preview, Shown, _collect, _encode, _events_as_json
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.source_to_sink import build
from penstock.pipelines.sources import SOURCES
from penstock.templates.template import templates
from penstock.transforms.formats.debezium import DebeziumFormat
from tests.unit.formats.events import event_of, schema_of
from tests.unit.pipelines.examples import made_with_examples
from tests.unit.tables.test_delta import publish

PRICE = ColumnType(Kind.DECIMAL, "NUMERIC", 10, 2)
ORDERS = schema_of({"Id": Kind.INT64}, State=Kind.STRING, Price=PRICE, Photo=Kind.BYTES)
INSERT = event_of(ORDERS, Op.CREATE, after={"Id": 7, "State": "open", "Price": Decimal(1), "Photo": b"\xff"})
UPDATE = event_of(ORDERS, Op.UPDATE, after={"Id": 7, "State": "paid"})
DELETE = event_of(ORDERS, Op.DELETE, before={"Id": 7})
CELLS = event_of(
    schema_of({"row_key": Kind.BYTES}),
    after={"row_key": b"user1"},
    source=Source("bigtable", "p/i", "", "", "users", "", ""),
    cells=(CellChange("SET_CELL", "f", b"mail", 5, None, b"a@b"),),
)


def shown(name: str, event: ChangeEvent, **given: Any) -> list[Any]:
    """Return the JSON that a preview prints for an event."""
    format = DebeziumFormat("shop") if SINKS[name].takes == "records" else None
    return [
        json.loads(text)
        for text in _events_as_json(made_with_examples(SINKS[name], **given).preview, format, event)
    ]


@pytest.mark.parametrize("event", [INSERT, UPDATE, DELETE], ids=["insert", "update", "delete"])
@pytest.mark.parametrize("mode", ["log", "current", "history"])
def test_a_delta_table_gets_the_row_that_was_shown(mode: str, event: ChangeEvent, tmp_path: Any) -> None:
    target = DeltaTarget(str(tmp_path / "{table}"), mode, "evolve")  # type: ignore[arg-type]
    (row,) = target.preview(event)
    publish(target, [event], 1)
    table = DeltaTable(row["table"]).to_pyarrow_table()
    written = table.to_pylist()[0]
    absent = {name for name in written if name not in row["row"]}
    assert row["row"] == {name: value for name, value in written.items() if name not in absent}
    assert absent == ({"Price", "Photo"} if event is UPDATE and mode != "log" else set())
    types = {field.name: str(field.type).replace("element:", "item:") for field in table.schema}
    assert row["types"] == {name: type_ for name, type_ in types.items() if name not in absent}


def test_values_that_json_does_not_have_are_shown_as_text() -> None:
    (line,) = shown("delta", INSERT)
    row, types = line["row"], line["types"]
    assert (line["table"], types["Id"], types["Price"]) == ("/data/lake/Orders", "int64", "decimal128(10, 2)")
    assert (row["Id"], row["Price"], row["Photo"]) == (7, "1.00", {"base64": "/w=="})
    assert row["_penstock_timestamp"] == "2022-12-11T21:00:00.890000Z"


def test_a_queue_gets_the_records_of_the_format_with_its_headers() -> None:
    (record,) = shown("kafka", INSERT, topic="shop.{table}")
    assert (record["topic"], record["key"]) == ("shop.Orders", {"Id": 7})
    assert record["value"]["after"]["State"] == "open"
    assert set(record["headers"]) == {"penstock.id", "penstock.version"}
    deleted, tombstone = shown("kafka", DELETE)
    assert (deleted["value"]["op"], tombstone["value"]) == ("d", None)
    (message,) = shown("pubsub", INSERT)
    assert (message["topic"], message["data"]["after"]["Id"]) == ("changes-Orders", 7)
    assert message["ordering_key"]


def test_files_with_columns_get_change_rows() -> None:
    for name in ("parquet", "avro"):
        (line,) = shown(name, UPDATE)
        assert (line["row"]["op"], line["row"]["after"]["State"]) == ("UPDATE", "paid")
        assert line["row"]["metadata"]["not_sent"] == ["Price", "Photo"]
        assert line["types"].keys() == line["row"].keys()


def test_a_database_gets_rows_with_its_own_types() -> None:
    (line,) = shown("postgresql", UPDATE, mode="current")
    assert line["row"] | {"Id": "7", "State": "paid", "_penstock_deleted": "f"} == line["row"]
    assert (line["types"]["Id"], "Price" in line["row"]) == ("bigint", False)
    (line,) = shown("postgresql", INSERT, mode="log")
    assert line["row"]["after"]["Price"] == 1
    (line,) = shown("bigquery", INSERT, mode="current")
    assert line["row"] | {"Id": 7, "Price": "1", "_CHANGE_TYPE": "UPSERT"} == line["row"]
    assert line["types"]["Price"] == "NUMERIC"
    (line,) = shown("bigquery", DELETE, mode="log")
    assert line["row"]["op"] == "DELETE"
    assert shown("spanner", INSERT) == [
        {
            "table": "Orders",
            "insert_or_update": {"Id": "7", "State": "open", "Price": "1", "Photo": "/w=="},
        }
    ]
    assert shown("spanner", DELETE) == [{"table": "Orders", "delete": ["7"]}]


def test_a_bigtable_table_gets_the_cells() -> None:
    (line,) = shown("bigtable", CELLS)
    assert (line["table"], line["row_key"]) == ("users", "user1")
    assert line["mutations"] == [
        {"kind": "SET_CELL", "family": "f", "qualifier": "mail", "timestamp_micros": 5, "value": "a@b"}
    ]


NAMES = [f"{source}-to-files" for source in SOURCES] + [
    f"{'postgres' if 'postgres' in kind.systems else kind.systems[0]}-to-{name}"
    for name, kind in SINKS.items()
]
"""Each source and each sink once."""


@pytest.mark.parametrize("name", NAMES)
def test_a_preview_of_a_template_has_no_step_that_writes_and_a_source_that_leaves_no_trace(
    name: str, tmp_path: Any
) -> None:
    template = templates()[name]
    given = {
        each: dict([parameter.example.split("=", 1)]) if parameter.entries is not None else parameter.example
        for each, parameter in template.parameters.items()
        if parameter.required and parameter.example is not None
    }
    given |= {
        each: str(tmp_path / each)
        for each in ("dead_letters", "notification_log", "lineage_log")
        if each in template.parameters
    }
    if "mode" in template.parameters and "current" in (template.parameters["mode"].choices or ()):
        given["mode"] = "log"
    given |= {each: "dbname=shop" for each in ("dsn", "target_dsn") if each in given}
    pipeline = beam.Pipeline()
    build(pipeline, template.source, template.sink, given, preview=Preview(limit=3))
    steps = _Transforms()
    pipeline.visit(steps)
    writing = [
        each for each in steps.found if isinstance(each, WriteStagedFiles | SendAfterCommit | PublishEpochs)
    ]
    assert writing == []
    (source,) = [each for each in steps.found if isinstance(each, ReadFromChangeStream)]
    settings: Any = source._settings
    assert not settings.notification_output
    assert not settings.lineage_output
    assert not settings.snapshots.takes_signals
    assert getattr(settings.connection, "preview", True)
    assert getattr(settings, "consumer", "") == ""
    assert list(tmp_path.iterdir()) == []


class _Transforms(beam.pipeline.PipelineVisitor):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def enter_composite_transform(self, transform_node: Any) -> None:
        self.found.append(transform_node.transform)


def test_texts_come_once_in_the_order_of_their_event_times() -> None:
    preview = Preview(limit=3)
    late, early = Shown(2, "a", 1, CHANGE, "late"), Shown(1, "b", 1, CHANGE, "early")
    for _ in range(2):  # an epoch that failed after its publications is repeated
        _collect(preview._id, [_encode(late), _encode(early)])
    assert [each.text for each in preview.take()] == ["early", "late"]
    assert preview.take() == []
