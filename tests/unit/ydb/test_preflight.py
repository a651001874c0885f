"""The checks before a read, the first frontier, and what a pipeline cannot do with a changefeed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock.errors import PositionLostError, SetupError, UsageError
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.io.ydb.errors import classify_status
from penstock.io.ydb.frontier import UNKNOWN, Position, Waiting
from penstock.io.ydb.preflight import (
    check_changefeed,
    check_positions,
    check_retention,
    check_scan_is_whole,
    check_snapshot,
    first_frontier,
)
from penstock.io.ydb.source import ChangeStream
from penstock_emulators.ydb.topic import Message, Topic
from tests.unit.ydb.memory import TABLE, described

HOUR = 3600 * 1_000_000_000
STREAM = ChangeStream("/local", "orders", "feed", 0, None)
FROM_TEN = ChangeStream("/local", "orders", "feed", 10 * HOUR, None)


def topic(*written_at: int, partitions: int = 1) -> Topic:
    made = Topic("/local/orders/feed", partitions=partitions, created_at=(1, 1))
    for at in written_at:
        made.append(0, Message(b"{}", at, at))
    return made


def test_a_read_without_a_start_begins_at_the_first_record_that_is_kept() -> None:
    made = topic(1, 2, 3)
    made.trim(0, 2)
    assert first_frontier(STREAM, described(made)).open == {0: Position(2, 0)}


def test_the_scan_is_looked_for_only_if_its_transaction_is_not_known_and_from_the_first_record_on() -> None:
    made = topic(1, 2, 3)
    assert first_frontier(STREAM, described(made, initial_scan=True)).open[0].snapshot is None
    made.created_at = (0, 0)
    assert first_frontier(STREAM, described(made, initial_scan=True)).open[0].snapshot == UNKNOWN
    made.trim(0, 1)
    assert first_frontier(STREAM, described(made, initial_scan=True)).open[0].snapshot is None


def test_a_start_is_sought_where_something_was_written_since_and_else_is_the_end() -> None:
    assert first_frontier(FROM_TEN, described(topic(9 * HOUR, 11 * HOUR))).open == {
        0: Position(0, 10 * HOUR, True)
    }
    assert first_frontier(FROM_TEN, described(topic(9 * HOUR))).open == {0: Position(1, 10 * HOUR)}
    assert first_frontier(FROM_TEN, described(topic())).open == {0: Position(0, 10 * HOUR)}


def test_partitions_with_parents_wait_and_those_whose_parents_are_gone_do_not() -> None:
    made = topic(1)
    low, high = made.split(0)
    frontier = first_frontier(STREAM, described(made))
    assert frontier.open.keys() == {0}
    assert frontier.waiting == {low: Waiting(frozenset({0})), high: Waiting(frozenset({0}))}
    del made.partitions[0]
    assert first_frontier(STREAM, described(made)).open.keys() == {low, high}


def test_a_changefeed_that_is_missing_disabled_or_unknown_is_refused_with_the_fix() -> None:
    found = described(topic())
    with pytest.raises(SetupError, match=r"it has: other.*ADD CHANGEFEED feed"):
        check_changefeed(STREAM, None, ("other",), "")
    with pytest.raises(SetupError, match="disabled"):
        check_changefeed(STREAM, described(topic(), disabled=True), (), "")
    check_changefeed(ChangeStream("/l", "t", "f", 0, 1), described(topic(), disabled=True), (), "")
    with pytest.raises(SetupError, match="not known to this release"):
        check_changefeed(STREAM, described(topic(), table=msgspec.structs.replace(TABLE, mode="")), (), "")
    with pytest.raises(SetupError, match=r"no consumer 'c'.*ADD CONSUMER c"):
        check_changefeed(STREAM, found, (), "c")
    check_changefeed(STREAM, described(topic(), consumers=("c",)), (), "c")


def test_snapshot_initial_demands_a_whole_scan_and_no_start() -> None:
    made = topic(1, 2)
    check_snapshot(STREAM, described(made), "")
    with pytest.raises(SetupError, match="INITIAL_SCAN = TRUE"):
        check_snapshot(STREAM, described(made), "initial")
    check_snapshot(STREAM, described(made, initial_scan=True), "initial")
    with pytest.raises(SetupError, match="Leave start out"):
        check_snapshot(FROM_TEN, described(made, initial_scan=True), "initial")
    check_scan_is_whole(STREAM, described(made, initial_scan=True), "initial")
    made.trim(0, 1)
    with pytest.raises(PositionLostError, match="rows of the initial scan may be missing"):
        check_scan_is_whole(STREAM, described(made, initial_scan=True), "initial")
    check_scan_is_whole(STREAM, described(made, initial_scan=True), "")


def test_snapshot_never_is_refused_if_rows_of_the_scan_look_like_changes() -> None:
    made = topic(1)
    check_snapshot(STREAM, described(made, initial_scan=True, virtual_timestamps=True), "never")
    with pytest.raises(SetupError, match="cannot tell"):
        check_snapshot(STREAM, described(made, initial_scan=True, virtual_timestamps=False), "never")
    check_snapshot(STREAM, described(made, virtual_timestamps=False), "never")
    made.created_at = (0, 0)
    with pytest.raises(SetupError, match="cannot tell"):
        check_snapshot(STREAM, described(made, initial_scan=True, virtual_timestamps=True), "never")


@pytest.mark.parametrize(
    ("given", "expected"), [(None, ""), (True, "initial"), (False, "never"), ("initial", "initial")]
)
def test_snapshot_has_the_values_of_the_other_sources(given: Any, expected: str) -> None:
    assert _snapshot_of(given) == expected


def test_when_needed_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="only when a changefeed is created"):
        _snapshot_of("when_needed")


def _snapshot_of(given: Any) -> str:
    source = ReadFromYdbChangefeed(
        endpoint="grpc://h:1", database="/l", table="t", changefeed="f", snapshot=given
    )
    return source._settings.snapshot


def test_a_start_before_the_retention_is_refused_if_records_were_deleted() -> None:
    made = topic(9 * HOUR, 11 * HOUR)
    now = 10 * HOUR + 25 * HOUR
    check_retention(FROM_TEN, described(made), now)  # all records since the creation are there
    made.trim(0, 1)
    with pytest.raises(PositionLostError, match="24 hours"):
        check_retention(FROM_TEN, described(made), now)
    check_retention(FROM_TEN, described(made), now - 2 * HOUR)
    check_retention(STREAM, described(made), now)


def test_a_position_that_the_topic_no_longer_has_is_refused() -> None:
    made = topic(1, 2, 3)
    frontier = first_frontier(STREAM, described(made))
    check_positions(STREAM, frontier, described(made), 5)
    made.trim(0, 2)
    with pytest.raises(PositionLostError, match="2 records are lost.*RETENTION_PERIOD"):
        check_positions(STREAM, frontier, described(made), 5)
    with pytest.raises(PositionLostError, match="created again"):
        check_positions(STREAM, frontier, described(made, created_at=(9, 9)), 5)
    shorter = topic(1)
    ahead = frontier.advanced({0: Position(2, 0)})
    with pytest.raises(PositionLostError, match="ends at offset 1"):
        check_positions(STREAM, ahead, described(shorter), 5)
    del shorter.partitions[0]
    with pytest.raises(PositionLostError, match="partition 0 was deleted"):
        check_positions(STREAM, frontier, described(shorter), 5)


def test_partitions_that_the_server_does_not_measure_are_read_from_their_first_record_wherever_it_is() -> (
    None
):
    found = described(topic(1, 2, 3))
    unmeasured = replace(found, partitions=tuple(replace(each, end=None) for each in found.partitions))
    frontier = first_frontier(STREAM, unmeasured)
    assert frontier.open == {0: Position(0, 0, True)}
    check_positions(STREAM, frontier.advanced({0: Position(2, 0)}), unmeasured, 5)


def test_a_sought_start_whose_records_were_deleted_since_is_refused() -> None:
    made = topic(9 * HOUR, 11 * HOUR)
    frontier = first_frontier(FROM_TEN, described(made))
    made.trim(0, 1)
    check_positions(FROM_TEN, frontier, described(made), 12 * HOUR)
    with pytest.raises(PositionLostError, match="retention"):
        check_positions(FROM_TEN, frontier, described(made), 35 * HOUR)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"virtual_timestamps": False}, "no virtual timestamps"),
        ({"barrier_seconds": 0.0}, "no barriers"),
        ({}, "no schema changes"),
        ({"disabled": True}, "disabled"),
        ({"table": msgspec.structs.replace(TABLE, mode="KEYS_ONLY")}, "no other column"),
        ({"table": msgspec.structs.replace(TABLE, mode="OLD_IMAGE")}, "no row after the change"),
        ({"table": msgspec.structs.replace(TABLE, mode="NEW_IMAGE")}, "no row before the change"),
        ({}, "materialize_rows"),
    ],
)
def test_check_says_what_a_pipeline_cannot_do(changed: dict[str, Any], said: str) -> None:
    assert any(said in each for each in described(topic(), **changed).limitations)


def test_a_changefeed_with_everything_has_no_limitations() -> None:
    table = msgspec.structs.replace(TABLE, mode="NEW_AND_OLD_IMAGES")
    assert described(topic(), table=table, schema_changes=True).limitations == ()


@pytest.mark.parametrize("status", ["UNAVAILABLE", "OVERLOADED", "CONNECTION_LOST", "CONNECTIONERROR"])
def test_temporary_failures_are_asked_again(status: str) -> None:
    from penstock.io.change_streams.status import UnreachableError

    assert isinstance(classify_status(status, "m", "s"), UnreachableError)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        ("UNAUTHENTICATED", "bad token", "credentials"),
        ("CONNECTIONERROR", 'StaticCredentials: "Invalid password" (server_code: 400020)', "credentials"),
        ("SCHEME_ERROR", "no path", "does not exist"),
        ("BAD_REQUEST", "one of topics is deleted, tablet 1", "does not exist"),
        ("UNIMPLEMENTED", "no method", "23.1"),
    ],
)
def test_lasting_failures_name_the_fix(status: str, text: str, said: str) -> None:
    error = classify_status(status, text, "changefeed f")
    assert isinstance(error, SetupError)
    assert said in str(error)
    assert text in str(error)


GIVEN = {"endpoint": "grpc://h:1", "database": "/local", "table": "orders", "changefeed": "feed"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"endpoint": "h:1"}, "grpc://"),
        ({"endpoint": "grpc://h"}, "host:port"),
        ({"database": "local"}, "absolute path"),
        ({"table": "/orders"}, "below the database"),
        ({"changefeed": "a/b"}, "bare name"),
        ({"token": "t", "user": "u"}, "token and user"),
        ({"password": "p"}, "without user"),
        ({"root_certificates": "f"}, "grpcs"),
        ({"delivery_seconds": -1}, "delivery_seconds"),
    ],
)
def test_malformed_arguments_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ReadFromYdbChangefeed(**{**GIVEN, **changed})


def test_secrets_are_shown_nowhere() -> None:
    transform = ReadFromYdbChangefeed(**GIVEN, user="u", password="geheim")
    shown = f"{transform._settings} {transform.display_data()} {transform.stream}"
    assert "geheim" not in shown
