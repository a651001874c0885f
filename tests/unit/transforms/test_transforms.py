"""The transforms over single events, as rules and in a Beam pipeline."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.testing.util import assert_that, equal_to

from penstock.errors import UsageError
from penstock.event import CellChange, ChangeEvent, Column, ColumnType, Kind, Op, TableSchema
from penstock.event.coder import decode_event, encode_event
from penstock.event.keys import changed_key
from penstock.event.sharding import shard_of
from penstock.transforms import (
    FilterEvents,
    FormatShardRecords,
    MaskColumns,
    RenameColumns,
    RouteEvents,
    SelectColumns,
    ShardByKey,
    ShardRecord,
    ToChangeEvents,
    VirtualTimestamp,
    YdbFormat,
    hashed,
    redacted,
    truncated,
)
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.formats.ydb_position import partition_of
from tests.unit.events.test_spanner_events import KEY, record
from tests.unit.transforms.events import order

SECRET = b"a secret of 16 bytes"


def apply(transform: ElementTransform, event: ChangeEvent) -> Any:
    """Return the one output of a transform."""
    (output,) = transform._process(event)
    return output


def test_records_become_events_in_a_pipeline_and_bad_records_a_second_output() -> None:
    from penstock.io.spanner.record import Mod

    good = record(Mod(KEY, '{"Name":"a"}', "{}"))
    bad = record(Mod(KEY, '{"Price":"x"}', "{}"))
    with beam.Pipeline() as pipeline:
        records = pipeline | beam.Create([good, bad])
        events, dead = records | ToChangeEvents(database="shop").with_exception_handling()
        assert_that(events | beam.Map(lambda event: event.source.database), equal_to(["shop"]))
        assert_that(dead | "dead" >> beam.Map(lambda pair: pair[1][0]), equal_to([ValueError]), label="bad")


def test_without_exception_handling_a_bad_record_fails_the_pipeline() -> None:
    from penstock.io.spanner.record import Mod

    with pytest.raises(Exception, match="column Price of table Orders"), beam.Pipeline() as pipeline:
        _ = pipeline | beam.Create([record(Mod(KEY, '{"Price":"x"}', "{}"))]) | ToChangeEvents()


def test_another_kind_of_record_is_named() -> None:
    with pytest.raises(TypeError, match="ToChangeEvents got a int"):
        ToChangeEvents()._process(5)


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"tables": "Orders"}, True),
        ({"tables": ["Users", "Ord*"]}, True),
        ({"tables": "orders"}, False),
        ({"without_tables": "Or*"}, False),
        ({"ops": ["update"]}, True),
        ({"ops": [Op.DELETE]}, False),
        ({"without_tags": ["backfill"]}, False),
        ({"where": lambda event: event.after["State"] == "open"}, True),
        ({"tables": "Orders", "ops": ["DELETE"]}, False),
    ],
)
def test_an_event_must_meet_every_condition(conditions: dict[str, Any], kept: bool) -> None:
    event = order(State="open", tag="backfill")
    assert list(FilterEvents(**conditions)._process(event)) == ([event] if kept else [])


def test_a_filter_that_keeps_nothing_and_an_unknown_operation_are_refused() -> None:
    with pytest.raises(UsageError, match="would drop every event"):
        FilterEvents(tables=[])
    with pytest.raises(UsageError, match="'UPSERT' is not an operation: use one of CREATE"):
        FilterEvents(ops=["UPSERT"])


def test_key_columns_stay_whatever_is_selected() -> None:
    event = order(State="open", Email="a@b")
    selected = apply(SelectColumns(only=["State"]), event)
    assert selected.after == {"Id": 1, "State": "open"}
    assert selected.schema.names == ("Id", "State")
    assert apply(SelectColumns(without=["Id", "State"]), event).after == {"Id": 1, "Email": "a@b"}
    assert apply(SelectColumns(only=["State"], table="Users"), event) is event
    with pytest.raises(UsageError, match="either only"):
        SelectColumns()


def test_a_column_has_its_new_name_everywhere() -> None:
    renamed = apply(RenameColumns({"Id": "order_id"}), order(State="open"))
    assert (renamed.key, renamed.after) == ({"order_id": 1}, {"order_id": 1, "State": "open"})
    assert renamed.schema.names == ("order_id", "State", "Email")
    assert renamed.unavailable == ("Email",)
    with pytest.raises(ValueError, match="a name that the table already has"):
        apply(RenameColumns({"Id": "State"}), order())
    with pytest.raises(UsageError, match="two columns one name"):
        RenameColumns({"Id": "x", "State": "x"})


def test_a_masked_value_is_hidden_and_null_and_unsent_stay() -> None:
    masks = MaskColumns({"Email": hashed(SECRET), "State": redacted()})
    masked = apply(masks, order(Email="a@b", State=None))
    assert masked.after["State"] is None
    assert len(masked.after["Email"]) == 64
    assert masked.after["Email"] == apply(masks, order(2, Email="a@b")).after["Email"]
    assert masked.after["Email"] != apply(masks, order(Email="a@c")).after["Email"]
    assert masked.schema.columns[2].type.kind is Kind.STRING
    assert "Email" not in apply(masks, order()).after
    assert decode_event(encode_event(masked)) == masked


def test_a_masked_key_is_masked_in_key_and_images() -> None:
    masked = apply(MaskColumns({"Id": truncated(2)}), order(1234, Op.DELETE))
    assert (masked.key, masked.before) == ({"Id": "12"}, {"Id": "12"})


def test_a_key_that_a_function_returns_is_read_when_the_mask_is_pickled() -> None:
    asked: list[int] = []

    def key() -> bytes:
        asked.append(1)
        return SECRET

    mask = hashed(key)
    assert asked == []
    assert pickle.loads(pickle.dumps(mask)).apply("x") == hashed(SECRET).apply("x")
    assert asked == [1]


def test_a_mask_shows_its_secret_nowhere() -> None:
    assert "secret" not in repr(hashed(SECRET))
    assert "secret" not in str(MaskColumns({"Email": hashed(SECRET)}).display_data())
    with pytest.raises(UsageError, match="at least 16 bytes"):
        hashed(b"short")


def test_the_first_route_that_matches_counts_and_an_event_without_a_route_fails() -> None:
    routes = RouteEvents({"Or*": "shop_{table}", "*": "rest"})
    assert apply(routes, order())[0] == "shop_Orders"
    assert apply(routes, order(table="Users"))[0] == "rest"
    with pytest.raises(ValueError, match="no route for table Users"):
        apply(RouteEvents({"Orders": "x"}), order(table="Users"))


def test_one_key_has_one_shard_and_shards_are_stable() -> None:
    assert {shard_of(order(5, op), 16) for op in Op} == {shard_of(order(5), 16)}
    shards = [apply(ShardByKey(8), order(number))[0] for number in range(200)]
    assert set(shards) == set(range(8))
    assert shards[:6] == [shard_of(order(number), 8) for number in range(6)]
    assert shard_of(order(1), 1000) == 413


def test_a_rule_gives_each_event_the_partition_that_ydb_would_give_it() -> None:
    events = [order(number) for number in range(50)]
    sharded = [apply(ShardByKey(6, rule=YdbFormat("feed").partition), event)[0] for event in events]
    assert sharded == [partition_of(YdbFormat("feed")(event)[0].key or b"", 6) for event in events]
    assert set(sharded) == set(range(6))
    without_key = msgspec.structs.replace(order(), key=None)
    with pytest.raises(ValueError, match="no primary key"):
        YdbFormat("feed").partition(without_key, 6)


def test_display_data_names_what_was_chosen() -> None:
    assert SelectColumns(only=["a", "b"]).display_data() == {"only": "a, b", "table": "*"}
    assert FilterEvents(tables="Orders", ops=["DELETE"]).display_data()["tables"] == "Orders"
    assert ToChangeEvents(database="shop").display_data() == {"database": "shop"}


def change_of_cells(*cells: CellChange) -> ChangeEvent:
    after = {"row_key": b"r"} | {cell.column: cell.value for cell in cells if cell.mod == "SET_CELL"}
    event = order()
    source = msgspec.structs.replace(event.source, system="bigtable")
    columns = (Column("row_key", ColumnType(Kind.BYTES), False, 1), Column("f:mail", ColumnType(Kind.BYTES)))
    return msgspec.structs.replace(
        event, source=source, key={"row_key": b"r"}, after=after, schema=TableSchema(columns), cells=cells
    )


MAIL = CellChange("SET_CELL", "f", b"mail", 5, None, b"a@b")
NAME = CellChange("SET_CELL", "f", b"name", 5, None, b"Ada")


def test_a_masked_value_of_bigtable_is_masked_in_the_cells_too() -> None:
    masked = apply(MaskColumns({"f:mail": redacted()}), change_of_cells(MAIL, NAME))
    assert [cell.value for cell in masked.cells] == [b"***", b"Ada"]
    assert b"a@b" not in encode_event(masked)
    assert decode_event(encode_event(masked)) == masked


def test_a_column_of_bigtable_that_is_left_out_is_in_no_cell() -> None:
    deletions = (CellChange("DELETE_FAMILY", "f"), CellChange("DELETE_CELLS", "f", b"mail"))
    event = change_of_cells(*deletions, CellChange("DELETE_FAMILY", "g"), MAIL, NAME)
    without = apply(SelectColumns(without=["f:mail"]), event)
    assert [cell.mod for cell in without.cells] == ["DELETE_FAMILY", "DELETE_FAMILY", "SET_CELL"]
    assert without.cells[-1] == NAME
    only = apply(SelectColumns(only=["f:name"]), event)
    assert only.cells == (deletions[0], NAME)
    assert only.after == {"row_key": b"r", "f:name": b"Ada"}


@pytest.mark.parametrize(
    "transform", [MaskColumns({"f:mail": redacted()}), SelectColumns(without=["f:mail"])]
)
def test_an_unknown_entry_of_bigtable_is_refused_because_it_may_hold_a_hidden_value(transform: Any) -> None:
    with pytest.raises(ValueError, match="a kind that this version does not know"):
        apply(transform, change_of_cells(CellChange("UNKNOWN", value=b"a@b")))


def test_events_and_barriers_of_a_shard_become_records() -> None:
    feed = YdbFormat("feed", virtual_timestamps=True)
    event, at = order(State="open"), VirtualTimestamp(7, 0)
    (found,) = FormatShardRecords(feed)._process((3, ShardRecord(at, event)))
    assert found == (3, *feed(event))
    ((shard, barrier),) = FormatShardRecords(feed)._process((3, ShardRecord(at, table="sales.Orders")))
    assert (shard, barrier.topic, barrier.value) == (3, "sales.Orders/feed", b'{"resolved":[7,0]}')


def test_a_masked_key_is_equal_in_key_and_images_for_each_text_of_one_value() -> None:
    schema = TableSchema((Column("Id", ColumnType(Kind.DECIMAL), False, 1),))
    before, after = {"Id": Decimal("2.5")}, {"Id": Decimal("2.50")}
    update = msgspec.structs.replace(order(), key=before, before=before, after=after, schema=schema)
    masked = apply(MaskColumns({"Id": hashed(SECRET)}), update)
    assert masked.key == masked.before == masked.after
    assert changed_key(masked) is None
