"""Every kind of write is in the change stream as the service documents it, and the stream agrees with the table."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import grpc
import pytest

from penstock_emulators.bigtable import Control
from tests.integration.emulators.bigtable.client import (
    Client,
    Mutation,
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    now_us,
    replayed,
    set_cell,
)
from tests.support.waiting import join

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

APPEND = {"family_name": "f", "column_qualifier": b"q", "append_value": b"x"}


def kinds(change) -> list[str]:
    return [mutation.WhichOneof("mutation") for mutation in change.mutations]


def families_deleted(change) -> list[str]:
    return [mutation.delete_from_family.family_name for mutation in change.mutations]


def test_a_server_assigned_timestamp_is_the_same_in_table_and_stream(client: Client) -> None:
    before = now_us()
    # Two clocks would show the same millisecond for one write now and then, but not for all of them.
    for number in range(30):
        client.write(b"row-%d" % number, set_cell("f", b"q", b"value"))
    assert replayed(client.read(start_us=before).changes) == client.cells()
    ((_, _, stamp),) = client.cells()[b"row-0"]
    assert before - before % 1000 <= stamp <= now_us()
    assert stamp % 1000 == 0


def test_a_row_change_is_one_record_with_its_mutations_in_order(client: Client) -> None:
    start = now_us()
    client.write(
        b"row",
        set_cell("f", b"", b"\xff\x00", 1000),
        set_cell("f", b"", b"2", 2000),
        delete_column("f", b"", 2000),
        set_cell("g", b"q", b"", 0),
    )
    (change,) = client.read(start_us=start).changes
    assert (change.key, change.kind, change.cluster) == (b"row", 1, "cluster-1")
    assert kinds(change) == ["set_cell", "set_cell", "delete_from_column", "set_cell"]
    assert client.cells() == {b"row": {("f", b"", 1000): b"\xff\x00", ("g", b"q", 0): b""}}
    assert replayed([change]) == client.cells()


def test_mutate_rows_logs_only_the_entries_that_were_applied(client: Client) -> None:
    start = now_us()
    codes = client.write_many(
        [
            (b"a", [set_cell("f", b"q", b"1")]),
            (b"b", [set_cell("f", b"q", b"2"), set_cell("unknown", b"q", b"2")]),
            (b"c", [set_cell("f", b"q", b"3", 1234)]),
            (b"d", [set_cell("f", b"q", b"4")]),
        ]
    )
    assert codes == [0, 5, 3, 0]
    assert [change.key for change in client.read(start_us=start).changes] == [b"a", b"d"]
    assert sorted(client.cells()) == [b"a", b"d"], "a row changes as a whole or not at all"


@pytest.mark.parametrize("exists", [True, False])
def test_check_and_mutate_logs_the_branch_that_the_predicate_chose(client: Client, exists: bool) -> None:
    if exists:
        client.write(b"row", set_cell("f", b"q", b"0", 0))
    start = now_us()
    matched = client.check_and_write(b"row", [delete_row()], [set_cell("g", b"q", b"1", 0)])
    assert matched == exists
    (change,) = client.read(start_us=start).changes
    assert kinds(change) == (["delete_from_family"] if exists else ["set_cell"])


def test_check_and_mutate_without_effect_makes_no_record(client: Client) -> None:
    start = now_us()
    assert not client.check_and_write(b"row", [set_cell("f", b"q", b"1")])
    assert client.read(start_us=start).changes == []


def test_read_modify_write_logs_the_cells_that_it_wrote(client: Client) -> None:
    client.write(b"row", set_cell("f", b"text", b"a"))
    start = now_us()
    client.read_modify_write(
        b"row",
        {"family_name": "f", "column_qualifier": b"text", "append_value": b"b"},
        {"family_name": "g", "column_qualifier": b"number", "increment_amount": 7},
    )
    (change,) = client.read(start_us=start).changes
    values = {mutation.set_cell.column_qualifier: mutation.set_cell.value for mutation in change.mutations}
    assert values == {b"text": b"ab", b"number": (7).to_bytes(8, "big")}
    table = client.cells()[b"row"]
    for mutation in change.mutations:
        cell = mutation.set_cell
        assert table[cell.family_name, cell.column_qualifier, cell.timestamp_micros] == cell.value


def test_delete_from_row_is_logged_as_deletions_of_the_families_with_data(client: Client) -> None:
    client.write(b"both", set_cell("f", b"q", b"1"), set_cell("g", b"q", b"1"))
    client.write(b"one", set_cell("g", b"q", b"1"))
    start = now_us()
    client.write(b"both", delete_row())
    client.write_many([(b"one", [set_cell("f", b"new", b"1"), delete_row(), set_cell("f", b"q", b"2")])])
    both, one = client.read(start_us=start).changes
    assert families_deleted(both) == ["f", "g"]
    assert kinds(one) == ["set_cell", "delete_from_family", "delete_from_family", "set_cell"]


def test_deleting_a_row_without_data_makes_no_record(client: Client) -> None:
    start = now_us()
    client.write(b"row", delete_row())
    assert client.read(start_us=start).changes == []


@pytest.mark.parametrize("prefix", [b"a", b"\xff", None])
def test_dropping_rows_makes_a_record_for_each_row_with_data(client: Client, prefix: bytes | None) -> None:
    rows = [b"a", b"a\x00", b"b", b"\xff", b"\xff\xff"]
    client.write_many([(key, [set_cell("f", b"q", b"1")]) for key in rows])
    start = now_us()
    client.drop_rows(prefix)
    changes = client.read(start_us=start).changes
    assert [change.key for change in changes] == [key for key in rows if key.startswith(prefix or b"")]
    assert all(families_deleted(change) == ["f"] for change in changes)
    assert sorted(client.cells()) == [key for key in rows if not key.startswith(prefix or b"")]


def test_aggregates_are_logged_with_the_added_values(new_client: Callable[[], Client]) -> None:
    client = new_client()
    aggregate = {"sum": {}, "input_type": {"int64_type": {"encoding": {"big_endian_bytes": {}}}}}
    client.create({"sums": {"value_type": {"aggregate_type": aggregate}}})
    start = now_us()
    for amount in (40, -15, 2):
        client.write(b"row", add_to_cell("sums", b"q", amount))
    changes = client.read(start_us=start).changes
    assert [change.mutations[0].add_to_cell.input.int_value for change in changes] == [40, -15, 2]
    assert replayed(changes) == client.cells()


def test_requests_that_would_crash_cbtemulator_are_refused(new_client: Callable[[], Client]) -> None:
    client = new_client()
    aggregate = {"sum": {}, "input_type": {"int64_type": {"encoding": {"big_endian_bytes": {}}}}}
    client.create({"sums": {"value_type": {"aggregate_type": aggregate}}})
    empty = add_to_cell("sums", b"q", 1)
    empty.add_to_cell.input.Clear()
    short = Mutation()
    short.merge_to_cell.family_name = "sums"
    short.merge_to_cell.timestamp.raw_timestamp_micros = 0
    short.merge_to_cell.input.raw_value = b"123"
    for mutation in (empty, short, set_cell("sums", b"q", b"123")):
        with pytest.raises(grpc.RpcError) as refused:
            client.write(b"row", mutation)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for rule in ({"append_value": b"x"}, {"increment_amount": 1}):
        with pytest.raises(grpc.RpcError, match="use add_to_cell") as refused:
            client.read_modify_write(b"row", *[{"family_name": "sums", "column_qualifier": b"q", **rule}] * 2)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert client.cells() == {}


def test_requests_that_the_documentation_forbids_are_refused_and_write_nothing(client: Client) -> None:
    start, cell = now_us(), set_cell("f", b"q", b"v")
    ruled_out: dict[str, Callable[[], object]] = {
        "a row without a key": lambda: client.write(b"", cell),
        "a row without mutations": lambda: client.write(b"row"),
        "too many mutations": lambda: client.write(b"row", *[cell] * 100_001),
        "no entries": lambda: client.write_many([]),
        "too many mutations in all": lambda: client.write_many([(b"row", [cell] * 50_001)] * 2),
        "no mutations for either answer": lambda: client.check_and_write(b"row", [], []),
        "a condition on no key": lambda: client.check_and_write(b"", [cell], [cell]),
        "rules for no key": lambda: client.read_modify_write(b"", APPEND),
        "no rules": lambda: client.read_modify_write(b"row"),
    }
    for what, call in ruled_out.items():
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, what
    assert client.write_many([(b"", [cell]), (b"row", []), (b"row", [cell])]) == [3, 3, 0]
    assert [change.key for change in client.read(start_us=start).changes] == list(client.cells()) == [b"row"]


def test_a_cancelled_write_is_in_the_stream_if_it_is_in_the_table(client: Client) -> None:
    start = now_us()
    value = b"x" * 200_000
    for number in range(40):
        with suppress(grpc.RpcError):  # most of them: the deadline is too short
            client.write(b"%02d" % number, set_cell("f", b"q", value), timeout=0.0005 * (number % 10 + 1))
    time.sleep(0.2)  # the last ones may still be on their way
    assert replayed(client.read(start_us=start).changes) == client.cells()


def test_concurrent_writers_of_one_row_are_logged_in_the_order_of_application(client: Client) -> None:
    start = now_us()

    def write(writer: int) -> None:
        rng = random.Random(writer)
        for number in range(60):
            value = b"%d-%d" % (writer, number)
            client.write(b"%d" % rng.randrange(2), set_cell("f", b"q", value, 0))

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for thread in writers:
        thread.start()
    join(*writers)
    changes = client.read(start_us=start).changes
    assert len(changes) == 240
    assert replayed(changes) == client.cells()
    stamps = [change.commit_us for change in changes]
    assert stamps == sorted(set(stamps)), "commit timestamps are strictly increasing"
    assert stamps[-1] <= now_us()


def test_a_later_change_of_a_row_gets_no_earlier_server_assigned_time(client: Client) -> None:
    start = now_us()

    def write(how: Callable[[], object]) -> None:
        for _ in range(60):
            how()

    ways = [
        lambda: client.write(b"row", set_cell("f", b"q", b"v")),
        lambda: client.write_many([(b"row", [set_cell("f", b"q", b"v")])]),
        lambda: client.read_modify_write(b"row", APPEND),
        lambda: client.read_modify_write(b"row", APPEND),
    ]
    writers = [threading.Thread(target=write, args=(way,), daemon=True) for way in ways]
    for thread in writers:
        thread.start()
    join(*writers)
    changes = client.read(start_us=start).changes
    stamps = [mutation.set_cell.timestamp_micros for change in changes for mutation in change.mutations]
    assert stamps == sorted(stamps), "the newest cell is that of the last change"
    assert replayed(changes) == client.cells()


def test_rows_are_consistent_while_a_family_is_dropped_and_recreated(client: Client) -> None:
    start, over = now_us(), threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            with suppress(grpc.RpcError):  # there is no family g now
                client.write(
                    b"%d-%d" % (writer, number), set_cell("f", b"q", b"1"), set_cell("g", b"q", b"1")
                )

    writers = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for thread in writers:
        thread.start()
    for _ in range(40):
        client.modify_family("g", drop=True)
        client.modify_family("g", create={})
    over.set()
    join(*writers)
    assert {change.key for change in client.read(start_us=start).changes} == set(client.cells())


def test_column_families_are_modified_all_together_or_not_at_all(client: Client) -> None:
    for modifications in (
        [{"id": "new", "create": {}}, {"id": "f", "create": {}}],
        [{"id": "g", "drop": True}, {"id": "new", "drop": True}],
        [{"id": "g", "drop": True}, {"id": "f", "update": {}, "update_mask": {"paths": ["no_such_field"]}}],
    ):
        with pytest.raises(grpc.RpcError):
            client.modify_families(modifications)
        assert set(client.get().column_families) == {"f", "g"}
    start = now_us()
    client.write(b"row", set_cell("f", b"q", b"1", 0), set_cell("g", b"q", b"1", 0))
    assert replayed(client.read(start_us=start).changes) == client.cells()


def test_a_write_is_logged_with_the_cluster_of_its_app_profile(client: Client) -> None:
    client.create_profile("elsewhere", "cluster-2")
    start = now_us()
    client.write(b"a", set_cell("f", b"q", b"1"))
    client.write(b"b", set_cell("f", b"q", b"1"), profile="elsewhere")
    assert [change.cluster for change in client.read(start_us=start).changes] == ["cluster-1", "cluster-2"]


def test_a_write_through_a_profile_that_does_not_exist_is_refused(client: Client) -> None:
    start, cell = now_us(), set_cell("f", b"q", b"v")
    for call in (
        lambda: client.write(b"a", cell, profile="nobody"),
        lambda: client.write_many([(b"a", [cell])], profile="nobody"),
        lambda: client.check_and_write(b"a", [], [cell], profile="nobody"),
        lambda: client.read_modify_write(b"a", APPEND, profile="nobody"),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert client.cells() == {}
    assert client.read(start_us=start).changes == []


def test_row_transactions_need_a_profile_that_allows_them(client: Client) -> None:
    client.create_profile("plain", "cluster-3")
    client.create_profile("everywhere", None)
    for profile in ("plain", "everywhere"):
        for call in (
            lambda: client.check_and_write(b"a", [], [set_cell("f", b"q", b"v")], profile=profile),  # noqa: B023
            lambda: client.read_modify_write(b"a", APPEND, profile=profile),  # noqa: B023
        ):
            with pytest.raises(grpc.RpcError, match="single-row transactions") as error:
                call()
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        client.write(b"b", set_cell("f", b"q", b"v"), profile=profile)
    assert list(client.cells()) == [b"b"]


def test_garbage_collection_removes_cells_when_asked_and_says_so(
    new_client: Callable[[], Client], control: Control
) -> None:
    client = new_client()
    created = client.create({"f": {"gc_rule": {"max_num_versions": 1}}, "g": {}})
    assert created.column_families["f"].gc_rule.max_num_versions == 1
    assert client.get().column_families["f"].gc_rule.max_num_versions == 1
    for stamp in (1000, 2000, 3000):
        client.write(b"row", set_cell("f", b"q", b"1", stamp), set_cell("g", b"q", b"1", stamp))
    start = now_us()
    assert control.gc(client.table) == 1
    (change,) = client.read(start_us=start).changes
    assert (change.kind, change.cluster, len(change.mutations)) == (2, "", 2)
    stamps = {stamp for family, _, stamp in client.cells()[b"row"] if family == "f"}
    assert stamps == {3000}
    assert control.gc(client.table) == 0


def test_every_kind_of_write_replays_to_the_table(client: Client) -> None:
    rng, start = random.Random(7), now_us()
    for _ in range(250):
        key, family, qualifier = b"%d" % rng.randrange(9), rng.choice("fg"), b"%d" % rng.randrange(3)
        cell = set_cell(family, qualifier, b"%d" % rng.randrange(99), rng.choice([-1, 1000, 2000]))
        others = [delete_family(family), delete_column(family, qualifier, 0, 2000), delete_row()]
        some = [cell, *rng.sample(others, rng.randrange(3))]
        rng.shuffle(some)
        how = rng.randrange(5)
        if how == 0:
            client.write(key, *some)
        elif how == 1:
            client.write_many([(key, some), (b"%d" % rng.randrange(9), [cell]), (key, [rng.choice(others)])])
        elif how == 2:
            client.check_and_write(key, some, [cell])
        elif how == 3:
            rule = {"family_name": family, "column_qualifier": b"text", "append_value": b"x"}
            client.read_modify_write(key, rule)
        else:
            client.drop_rows(key) if not rng.randrange(5) else client.write(key, cell)
    assert replayed(client.read(start_us=start).changes) == client.cells()
