"""The real client of YDB works against the test service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ydb

from penstock_emulators.ydb import YdbEmulator
from tests.integration.ydb.conftest import Table

pytestmark = pytest.mark.slow


@pytest.fixture
def driver(service: YdbEmulator) -> Iterator[ydb.Driver]:
    with ydb.Driver(endpoint=service.endpoint, database=service.database) as made:
        made.wait(10, fail_fast=True)
        yield made


def test_the_client_describes_tables_and_topics(driver: ydb.Driver, new_table: Any) -> None:
    table: Table = new_table(partitions=3)
    with ydb.SessionPool(driver) as pool:
        described = pool.retry_operation_sync(lambda session: session.describe_table(f"/local/{table.name}"))
    assert [column.name for column in described.columns] == ["id", "note", "amount"]
    assert described.primary_key == ["id"]
    topic = driver.topic_client.describe_topic(f"/local/{table.topic}", include_stats=True)
    assert [partition.partition_id for partition in topic.partitions] == [0, 1, 2]
    assert driver.scheme_client.describe_path(f"/local/{table.name}").name == table.name
    with pytest.raises(ydb.issues.SchemeError):
        driver.topic_client.describe_topic("/local/nothing")


def test_the_clients_reader_follows_a_split_commits_and_resumes(driver: ydb.Driver, new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.control.add_consumer(table.topic, "c")
    table.upsert(1, 2, 3)
    table.control.split(table.topic, 0)
    table.upsert(4, 5, 6)
    with driver.topic_client.reader(table.topic, "c") as reader:
        found = []
        for _ in range(4):
            message = reader.receive_message(timeout=10)
            found.append((message.partition_id, message.offset))
            reader.commit_with_ack(message)
    assert found[:3] == [(0, 0), (0, 1), (0, 2)], "a child comes after its parent"
    with driver.topic_client.reader(table.topic, "c") as reader:
        rest = {reader.receive_message(timeout=10).partition_id for _ in range(2)}
    assert rest <= {1, 2}
    committed = table.control.committed(table.topic, "c")
    assert committed[0] == 3


def test_the_clients_reader_survives_lost_connections(driver: ydb.Driver, new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.control.add_consumer(table.topic, "c")
    for key in range(20):
        table.upsert(key)
    table.control.fail("StreamRead", "grpc:UNAVAILABLE", after_messages=5)
    table.control.fail("StreamRead", "OVERLOADED", after_messages=9)
    offsets = set()
    with driver.topic_client.reader(table.topic, "c") as reader:
        while len(offsets) < 20:
            offsets.add(reader.receive_message(timeout=20).offset)
    assert offsets == set(range(20))


def test_a_wrong_token_is_refused() -> None:
    with YdbEmulator.start() as guarded:
        guarded.control.require_token("right")
        wrong = ydb.Driver(
            endpoint=guarded.endpoint,
            database="/local",
            credentials=ydb.credentials.AccessTokenCredentials("wrong"),
        )
        with wrong, pytest.raises((ydb.issues.ConnectionError, ydb.issues.Unauthenticated)):
            wrong.wait(5, fail_fast=True)
        right = ydb.Driver(
            endpoint=guarded.endpoint,
            database="/local",
            credentials=ydb.credentials.AccessTokenCredentials("right"),
        )
        with right:
            right.wait(5, fail_fast=True)
