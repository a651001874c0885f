"""Penstock's transforms in Beam YAML, over rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.yaml.yaml_provider import load_providers, merge_providers
from apache_beam.yaml.yaml_transform import YamlTransform

from penstock.beam_yaml import PROVIDERS
from penstock.beam_yaml.rows import ChangeRow, change_row, event_of
from penstock.beam_yaml.transforms import format_events, mask_columns
from penstock.errors import UsageError
from penstock.event import Kind, Op
from tests.unit.formats.events import event_of as make_event
from tests.unit.formats.events import schema_of

ORDERS = schema_of({"Id": Kind.INT64}, State=Kind.STRING, At=Kind.TIMESTAMP)
NEW = make_event(ORDERS, Op.CREATE, after={"Id": 1, "State": "new", "At": 0})
GONE = make_event(ORDERS, Op.DELETE, before={"Id": 2, "State": "paid"})
PAGE = Path(__file__).resolve().parents[3] / "docs" / "beam-yaml.md"


def run(chain: str, check: Callable[[list[Any]], None], *events: Any) -> None:
    """Check what a chain of transforms in YAML makes of events."""
    providers = merge_providers(load_providers(str(PROVIDERS)))
    with beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create(list(map(change_row, events))).with_output_types(ChangeRow)
        spec = f"type: chain\ntransforms:\n{chain}"
        made = rows | YamlTransform(spec, providers=providers)
        assert_that(made, check)


def test_each_provided_transform_exists_and_is_described() -> None:
    (provider,) = yaml.safe_load(PROVIDERS.read_text())
    page = PAGE.read_text("utf-8")
    for name, path in provider["transforms"].items():
        module, _, function = path.rpartition(".")
        assert getattr(import_module(module), function).__doc__
        assert f"`{name}`" in page


def test_a_row_shows_the_event_and_holds_all_of_it() -> None:
    row = change_row(NEW)
    assert (row.table, row.op, row.timestamp, row.key) == ("Orders", "CREATE", NEW.timestamp, '{"Id":1}')
    assert json.loads(row.after or "") == {"Id": 1, "State": "new", "At": "1970-01-01T00:00:00Z"}
    assert change_row(GONE).unavailable == ["At"]
    assert event_of(row) == NEW


def test_a_row_without_its_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no field `event`"):
        event_of(beam.Row(table="Orders"))


@pytest.mark.slow
def test_events_are_filtered_by_penstock_and_by_beam() -> None:
    chain = """
  - type: FilterEvents
    config: {tables: Orders, ops: [DELETE, CREATE]}
  - type: Filter
    config: {language: python, keep: "op == 'DELETE'"}
  - type: FormatEvents
    config: {format: debezium, options: {server: srv, tombstones_on_delete: "false"}}
"""

    def check(records: list[Any]) -> None:
        (record,) = records
        assert (record.topic, record.key) == ("srv.Orders", b'{"Id":2}')
        assert json.loads(record.value)["op"] == "d"

    run(chain, check, NEW, GONE)


def test_masked_and_renamed_columns_become_typed_rows() -> None:
    chain = """
  - type: MaskColumns
    config: {redact: [State]}
  - type: RenameColumns
    config: {names: {State: status}}
  - type: FlattenAfter
    config: {columns: {Id: integer, status: string, Missing: number}, metadata: [op, timestamp]}
"""
    expected = {
        "Id": 1,
        "status": "***",
        "Missing": None,
        "change_op": "CREATE",
        "change_timestamp": NEW.timestamp,
    }

    def check(rows: list[Any]) -> None:
        assert [row._asdict() for row in rows] == [expected]

    run(chain, check, NEW)


def test_what_cannot_be_formatted_goes_to_the_output_that_the_user_named() -> None:
    truncated = make_event(ORDERS, Op.TRUNCATE, after={"Id": 1})
    providers = merge_providers(load_providers(str(PROVIDERS)))
    spec = """
type: composite
input: {rows: input}
transforms:
  - type: FormatEvents
    name: Format
    input: rows
    config: {format: dynamodb, error_handling: {output: errors}, options: {stream_view_type: KEYS_ONLY}}
output: {good: Format, bad: Format.errors}
"""
    with beam.Pipeline() as pipeline:
        rows = pipeline | beam.Create(list(map(change_row, [NEW, truncated]))).with_output_types(ChangeRow)
        made = {"input": rows} | YamlTransform(spec, providers=providers)
        assert_that(made["good"] | beam.Map(lambda row: row.topic), equal_to(["Orders"]), "good")
        errors = made["bad"] | beam.Map(lambda row: (row.table, row.attempt, "truncate" in row.reason))
        assert_that(errors, equal_to([("Orders", 1, True)]), "bad")


@pytest.mark.parametrize(
    "make",
    [
        lambda: format_events(format="debezum"),
        lambda: format_events(format="debezium", encoding="avro"),
        lambda: format_events(format="ydb", encoding="avro", schema_registry="http://r"),
        lambda: mask_columns(hash=["State"]),
    ],
)
def test_a_wrong_configuration_is_refused_before_the_start(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
