"""The catalog of formats: options come from the classes, and what cannot work is refused with the fix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import Kind, Op, Source
from penstock.options import EMPTY, arguments_of
from penstock.transforms.formats.catalog import CATALOG, formats_of, make_format
from tests.unit.formats.events import event_of, schema_of

GIVEN = {"server": "shop", "changefeed": "feed", "instance": "main"}
ROWS = schema_of({"Id": Kind.INT64}, State=Kind.STRING)


def made(name: str, system: str = "spanner", **options: Any) -> Any:
    return make_format(system, name, options, GIVEN)


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: f"{entry.name} of {entry.systems[0]}")
def test_every_option_has_a_help_text_and_every_format_can_be_made_without_options(entry: Any) -> None:
    (system, *_) = entry.systems
    for name, option in entry.options(system).items():
        assert option.help.endswith("."), name
        assert option.default is not EMPTY or name in GIVEN, name
    assert callable(made(entry.name, system))


def test_an_option_may_be_given_as_text() -> None:
    (record, _) = made("debezium", debezium={"schemas_enable": "true", "server": "x"})(
        event_of(ROWS, Op.DELETE, before={"Id": 1, "State": "a"})
    )
    assert record.topic == "x.Orders"
    assert record.value.startswith(b'{"schema":')


def test_the_data_format_of_cloudevents_has_its_own_options() -> None:
    format_ = made("cloudevents", cloudevents={"data_format": "ydb"}, ydb={"mode": "NEW_IMAGE"})
    assert format_.required_mode == "NEW_IMAGE"
    (record,) = format_(event_of(ROWS, after={"Id": 1, "State": "a"}))
    assert json.loads(record.value)["data"]["newImage"] == {"State": "a"}


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("debezum", {}, "format 'debezum' does not exist for spanner: use one of debezium, envelope, ydb"),
        ("ydb", {"ydb": {"moed": "UPDATES"}}, "has no option 'moed'; did you mean 'mode'"),
        ("ydb", {"ydb": {"mode": "IMAGE"}}, "mode 'IMAGE' does not exist: use one of KEYS_ONLY"),
        ("debezium", {"debezium": {"schemas_enable": "maybe"}}, "schemas_enable 'maybe' is not of type bool"),
        (
            "debezium",
            {"ydb": {"mode": "UPDATES"}},
            "options of format ydb have no effect with format debezium",
        ),
        (
            "cloudevents",
            {"cloudevents": {"data_format": "cloudevents"}},
            "use one of debezium, envelope, ydb",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_fix(
    name: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        made(name, **options)


def test_each_source_has_its_own_layout_of_googles_templates() -> None:
    layouts = [type(made("bigquery", system)).__name__ for system in ("spanner", "bigtable")]
    assert layouts == ["SpannerBigQueryFormat", "BigtableChangeLogFormat"]
    assert set(formats_of("spanner")) - {"change_feed"} == set(formats_of("bigtable"))


def test_rows_of_materialize_rows_satisfy_every_mode() -> None:
    source = Source("spanner", table="Orders", capture="NEW_VALUES", materialized=True)
    for name, options in {"ydb": {"mode": "OLD_IMAGE"}, "dynamodb": {}}.items():
        assert made(name, **{name: options})(
            event_of(ROWS, before={"Id": 1, "State": "a"}, after={"Id": 1, "State": "b"}, source=source)
        )


def test_an_update_of_a_materialized_row_shows_the_columns_that_differ() -> None:
    source = Source("spanner", table="Orders", capture="OLD_AND_NEW_VALUES", materialized=True)
    schema = schema_of({"Id": Kind.INT64}, State=Kind.STRING, Note=Kind.STRING)
    before = {"Id": 1, "State": "a", "Note": None}
    (record,) = made("ydb")(event_of(schema, before=before, after={**before, "State": "b"}, source=source))
    assert record.value == b'{"key":[1],"update":{"State":"b"}}'


def test_the_help_of_an_argument_is_its_whole_text_in_one_line() -> None:
    def function(*, one: int = 1, other: str | None = None, undocumented: bool = False) -> None:
        """Do something.

        Args:
            one: First line
                and ``second`` line.
            other: Text: with a colon.

        Raises:
            ValueError: never.
        """

    found = arguments_of(function)
    assert (found["one"].type, found["one"].default) == (int, 1)
    assert found["one"].help == "First line and `second` line."
    assert (found["other"].type, found["other"].help) == (str, "Text: with a colon.")
    assert found["undocumented"].help == ""
