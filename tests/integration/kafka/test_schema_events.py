"""SCHEMA events in topics of a real broker: every partition is told before a row with the new columns."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock.event import Version
from penstock.event.schema_events import note_columns, schema_events
from penstock.transforms import ChangeFeedFormat
from penstock_emulators.kafka import KafkaBroker
from tests.integration.kafka.conftest import Target, header, read_all
from tests.unit.events.test_schema_events import NEW, OLD, event

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 3


def test_each_partition_has_the_event_before_the_rows_with_the_new_columns(broker: KafkaBroker) -> None:
    deliver_and_read(broker, "told")


@pytest.mark.parametrize("answer", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, None])
def test_a_broker_that_does_not_know_its_new_topic_yet_is_asked_again(
    broker: KafkaBroker, answer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, asked, list_topics = f"new{answer}", [], AdminClient.list_topics

    def too_early(client: AdminClient, *topics: str, **options: Any) -> Any:
        found = list_topics(client, *topics, **options)
        if topics == (f"{name}.orders",):
            asked.append(topics)
            if len(asked) == 1:
                error = None if answer is None else KafkaError(answer)
                return SimpleNamespace(topics={topics[0]: SimpleNamespace(partitions={}, error=error)})
        return found

    monkeypatch.setattr(AdminClient, "list_topics", too_early)
    deliver_and_read(broker, name)
    assert len(asked) > 2


def deliver_and_read(broker: KafkaBroker, name: str) -> None:
    target = Target(broker, format=ChangeFeedFormat(), partitions=PARTITIONS, topic=f"{name}.{{table}}")
    known, told = None, []
    for number in range(60):
        row = {"id": number}
        columns = OLD if number < 30 else NEW
        each = msgspec.structs.replace(
            event(number, columns), key=row, after=row, version=Version(number, str(number))
        )
        known, change = note_columns(known, each)
        told += [] if change is None else schema_events(each, change, 1)
        told.append(each)
    target.deliver(told)
    found: dict[int, list[str]] = {}
    for message in read_all(broker.address, f"{name}.orders"):
        content = json.loads(message.value() or b"")
        partition = found.setdefault(message.partition() or 0, [])
        if content["_change_type"] == "schema":
            partition.append(",".join(each["name"] for each in content["_columns"]))
            assert header(message, "penstock.id").endswith("-schema")
        else:
            assert partition, "a row comes before the columns of its table are told"
            assert partition[-1] == ",".join(list(content)[:-4])
    assert found == {number: ["id,a", "id,a,b"] for number in range(PARTITIONS)}
