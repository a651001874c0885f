"""Starts, ends, restarts and refused requests, on the real emulator."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.io.change_streams.watermark import beam_watermark
from penstock.io.spanner import PositionLostError, SetupError
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.query import ROOT, change_stream_query
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.spanner.conftest import POSTGRESQL, nanoseconds_of

pytestmark = [pytest.mark.emulator, pytest.mark.long(seconds=5)]
SECOND = 1_000_000_000


def insert(database: Any, *keys: int, table: str = "Accounts") -> int:
    """Commit rows and return the commit timestamp in nanoseconds."""
    with database.client.batch() as batch:
        batch.insert_or_update(table, ["Id", "Value"], [(key, "x") for key in keys])
    committed = batch.committed
    return int(committed.timestamp()) * SECOND + committed.nanosecond


def keys(records: list[Any]) -> list[str]:
    return [json.loads(mod.keys)["Id"] for record in records for mod in record.mods]


def run_until_it_fails(driver: Any) -> None:
    for _ in range(60):
        driver.run(0.3)


def read_all(epochs: Callable[..., Any], transform: Any, seconds: float = 0.3) -> list[Any]:
    driver = epochs(transform)
    for _ in range(40):
        if not driver.residuals:
            return driver.committed
        driver.run(seconds)
    raise AssertionError("the bounded reading does not end")


def test_start_and_end_are_inclusive_and_may_be_the_same_moment(database: Any, epochs: Any) -> None:
    _, second, third, _ = (insert(database, number) for number in range(4))
    assert keys(read_all(epochs, database.reading(start=second, end=third))) == ["1", "2"]
    assert keys(read_all(epochs, database.reading(start=second, end=second))) == ["1"]
    assert keys(read_all(epochs, database.reading(start=second + 1, end=third - 1))) == []


def test_an_idle_stream_advances_its_watermark_also_right_after_a_change(
    new_database: Any, epochs: Any
) -> None:
    with SpannerEmulator.start() as quiet:  # tokens live long: nothing but heartbeats can move the watermark
        database = new_database(quiet)
        driver = epochs(database.reading())
        committed = insert(database, 1)
        driver.run_until(committed + SECOND // 2)
        queries_to_now = time.time_ns()
        driver.run_until(queries_to_now)
    assert keys(driver.committed) == ["1"]


def test_checkpoint_between_records_of_one_timestamp_repeats_and_loses_nothing(
    database: Any, epochs: Any
) -> None:
    start = time.time_ns()
    with database.client.batch() as batch:
        for number in range(6):  # alternating tables: one record each
            batch.insert(("Accounts", "Orders")[number % 2], ["Id", "Value"], [(number, "x")])
    driver = epochs(database.reading(start=start, end=time.time_ns() + SECOND // 10))
    process = driver.fn.process
    emitted = 0

    def stops_after_one(*arguments: Any) -> Any:
        nonlocal emitted
        for output in process(*arguments):
            yield output
            emitted += 1
            if emitted <= 4:
                arguments[1].defer_remainder()

    driver.fn.process = stops_after_one
    for _ in range(40):
        if driver.residuals:
            driver.run(0.2)
    records = driver.committed
    assert len({record.commit_timestamp for record in records}) == 1
    sequences = [record.record_sequence for record in records]
    assert sequences == sorted(set(sequences))
    assert sorted(keys(records)) == [str(number) for number in range(6)]


def test_start_exactly_at_the_moment_of_a_split_or_merge(database: Any, epochs: Any) -> None:
    start = time.time_ns()
    client = epochs(database.reading())  # opens the client
    spanner = client.fn._client(client.stream)

    def children(token: str, since: int, until: int) -> list[Any]:
        query = change_stream_query("READ_Changes", token, since, until, 1000)
        decoder = Decoder()
        rows = [row for message in spanner.open(query, "test", 5) for row in decoder.feed(message)]
        return [row for row in rows if hasattr(row, "child_partitions")]

    first = children(ROOT, start, start)[0].child_partitions[0].token
    moment = children(first, start, start + 4 * SECOND)[0].start_timestamp
    at_once = insert(database, 1)
    driver = epochs(database.reading(start=moment))
    driver.run_until(at_once)
    assert keys(driver.committed) == ["1"]


def test_start_before_the_creation_is_a_clear_error(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading(start=time.time_ns() - 3600 * SECOND))
    with pytest.raises(
        PositionLostError, match="before the change stream's creation or past its retention"
    ) as error:
        driver.run(2)
    assert f"change stream Changes of {driver.stream.database_path}" in str(error.value)


def test_start_a_little_in_the_future_waits_and_then_reads(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading(start=time.time_ns() + SECOND))
    insert(database, 1)
    driver.run(0.3)
    time.sleep(1)
    driver.run_until(insert(database, 2))
    assert keys(driver.committed) == ["2"]


def test_unknown_stream_and_database_are_refused_before_anything_is_read(database: Any) -> None:
    with pytest.raises(SetupError, match=r"no change stream 'Nothing' .*there are: Changes"):
        database.reading(change_stream="Nothing").check()
    with pytest.raises(SetupError, match="the project, instance or database does not exist"):
        database.reading(database="nowhere").check()
    assert database.reading().check().options["value_capture_type"] == "OLD_AND_NEW_VALUES"


def test_a_postgresql_stream_is_found_by_its_spelling_and_its_drop_is_a_clear_error(
    emulator: SpannerEmulator, new_database: Any, epochs: Any
) -> None:
    database = new_database(emulator, dialect=POSTGRESQL)
    with pytest.raises(SetupError, match=r"no change stream 'nothing' .*there are: Changes.* WITH \("):
        database.reading(change_stream="nothing").check()
    facts = database.reading(change_stream="changes").check()
    assert (facts.dialect, facts.functions) == (POSTGRESQL, ("read_json_Changes",))
    assert facts.options["value_capture_type"] == "OLD_AND_NEW_VALUES"
    driver = epochs(database.reading(change_stream="changes"))
    driver.run_until(insert(database, 1))
    assert [record.table_name for record in driver.committed] == ["Accounts"]
    database.client.update_ddl(['DROP CHANGE STREAM "Changes"']).result(30)
    with pytest.raises(SetupError, match="the change stream does not exist"):
        driver.run(2)


def test_stream_dropped_while_it_is_read_is_a_clear_error(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    driver.run_until(insert(database, 1))
    database.client.update_ddl(["DROP CHANGE STREAM Changes"]).result(30)
    with pytest.raises(SetupError, match="the change stream does not exist"):
        driver.run(2)


def test_stream_dropped_and_recreated_is_a_clear_error(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    driver.run_until(insert(database, 1))
    database.client.update_ddl(["DROP CHANGE STREAM Changes", "CREATE CHANGE STREAM Changes FOR ALL"]).result(
        30
    )
    with pytest.raises(
        PositionLostError, match=r"dropped and created again|before the change stream's creation"
    ):
        driver.run(2)


def test_columns_and_capture_type_may_change_in_mid_stream(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    insert(database, 1)
    database.client.update_ddl(["ALTER TABLE Accounts ADD COLUMN Extra BOOL"]).result(30)
    insert(database, 2)
    database.client.update_ddl(["ALTER TABLE Accounts DROP COLUMN Version"]).result(30)
    insert(database, 3)
    database.client.update_ddl(
        ["ALTER CHANGE STREAM Changes SET OPTIONS (value_capture_type = 'NEW_ROW')"]
    ).result(30)
    driver.run_until(insert(database, 3))
    assert [record.value_capture_type for record in driver.committed] == ["OLD_AND_NEW_VALUES"] * 3 + [
        "NEW_ROW"
    ]
    names = [{column.name for column in record.column_types} for record in driver.committed]
    assert "Extra" not in names[0]
    assert "Extra" in names[1]
    assert "Version" not in names[-1]


def test_a_dead_emulator_is_retried_with_backoff_and_fails_the_read_after_the_timeout(
    new_database: Any, epochs: Any
) -> None:
    with SpannerEmulator.start() as mortal:
        database = new_database(mortal)
        driver = epochs(database.reading(unavailable_seconds=3.0))
        driver.run_until(insert(database, 1))
        mortal.stop()
        # What the other threads of this process need is not the reader's.
        others = sum(os.times()[:2])
        time.sleep(0.5)
        others = 2 * (sum(os.times()[:2]) - others)
        cpu = sum(os.times()[:2])
        begun = time.monotonic()
        given_up = r"not answered for \d+ s \(unavailable_seconds=3\)"
        with pytest.raises(UnavailableError, match=given_up):
            run_until_it_fails(driver)  # cut every 0.3 s: the outage must outlive the bundles
        seconds = time.monotonic() - begun
        assert seconds > 2.5
        assert sum(os.times()[:2]) - cpu - others * seconds < 2.0


def test_an_emulator_that_comes_back_empty_is_a_clear_error(new_database: Any, epochs: Any) -> None:
    with SpannerEmulator.start() as mortal:
        database = new_database(mortal)
        driver = epochs(database.reading(unavailable_seconds=20.0))
        driver.run_until(insert(database, 1))
        mortal.restart()
        with pytest.raises(SetupError, match="an emulator forgets everything when it ends"):
            run_until_it_fails(driver)


def test_a_lost_session_is_replaced(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    insert(database, 1)
    spanner = driver.fn._client(driver.stream)
    spanner._session = f"{driver.stream.database_path}/sessions/unknown"
    driver.run_until(insert(database, 2))
    assert keys(driver.committed) == ["1", "2"]


def test_a_huge_transaction_is_read_completely_across_chunks_and_splits(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    with database.client.batch() as batch:
        for number in range(40):
            table = ("Accounts", "Orders")[number % 2]
            batch.insert(table, ["Id", "Value"], [(number * 10 + row, "ü" * 4_000) for row in range(10)])
    # Not the time of this process: Google's emulator dates commits up to 12 ms ahead of it.
    driver.run_until(nanoseconds_of(batch.committed), seconds=0.02)
    records = driver.committed
    assert sorted(int(key) for key in keys(records)) == list(range(400))
    assert {record.number_of_records_in_transaction for record in records} == {len(records)}
    assert all(json.loads(mod.new_values)["Value"] == "ü" * 4_000 for r in records for mod in r.mods)


def test_a_position_past_a_partitions_end_does_not_count_as_finished(database: Any, epochs: Any) -> None:
    driver = epochs(database.reading())
    driver.run_until(time.time_ns())
    frontier = driver.residuals[0][0]
    wrong = {token: Position(position.timestamp + 20 * SECOND) for token, position in frontier.open.items()}
    driver.residuals = [(Frontier(wrong, frontier.waiting), beam_watermark(frontier.watermark))]
    time.sleep(2.5)  # every token has ended by now
    driver.residuals = [
        (Frontier({t: Position(time.time_ns()) for t in wrong}, {}), beam_watermark(frontier.watermark))
    ]
    with pytest.raises(PositionLostError, match="not taken for its end"):
        driver.run(2)
