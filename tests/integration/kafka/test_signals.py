"""Requests for snapshots that come through a topic of a real broker."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.io.change_streams.incremental.channels import KafkaChannel
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from penstock_emulators.kafka import KafkaBroker
from tests.integration.kafka.conftest import CLIENT_LOG
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class Topic:
    """A topic of signals, and a job that reads it."""

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.progress = SnapshotProgress()
        self.applied: list[Any] = []

    def channel(self, **options: str) -> KafkaChannel:
        return KafkaChannel({"topic": self.name, "bootstrap.servers": self.broker.address, **options})

    def send(self, table: str, *, key: str | None = None, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address}, logger=CLIENT_LOG)
        value = {"type": "execute-snapshot", "data": {"data-collections": [table]}}
        producer.produce(self.name, json.dumps(value), key, **more)
        assert producer.flush(20) == 0

    def poll(self, channel: KafkaChannel) -> int:
        """Poll as the worker does, and keep the position as a checkpoint does; return how many signals there are."""
        stored = SnapshotProgress.from_document(json.loads(json.dumps(self.progress.document())))
        polled = channel.poll(stored.channel("kafka"))
        if polled is not None:
            self.progress = stored.with_channel(polled.channel, polled.position)
            self.applied += polled.signals
        return len(self.applied)

    def tables(self) -> list[str]:
        return [signal.tables[0] for signal in self.applied if isinstance(signal, ExecuteSnapshot)]


_numbers = itertools.count()


def create(broker: KafkaBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address}, logger=CLIENT_LOG)
    admin.create_topics([NewTopic(name, 2)])[name].result(20)


@pytest.fixture
def topic(broker: KafkaBroker) -> Topic:
    name = f"signals-{next(_numbers)}"
    create(broker, name)
    return Topic(broker, name)


def test_each_signal_of_a_topic_is_applied_once_from_the_end_of_the_topic_on(topic: Topic) -> None:
    topic.send("too.old")
    channel = topic.channel()
    topic.poll(channel)
    topic.send("first")
    wait_until(lambda: topic.poll(channel) == 1, "the signal does not come")
    channel.close()
    topic.send("while.nothing.reads")
    channel = topic.channel()
    wait_until(lambda: topic.poll(channel) == 2, "the signal that was sent meanwhile does not come")
    topic.poll(channel)
    channel.close()
    assert topic.tables() == ["first", "while.nothing.reads"]
    assert len({signal.id for signal in topic.applied}) == 2


@pytest.mark.campaign
def test_only_messages_with_the_key_of_the_job_and_valid_ones_are_applied(topic: Topic) -> None:
    channel = topic.channel(key="shop")
    topic.poll(channel)
    topic.send("of.another.job", key="bank")
    topic.send("without.a.key")
    producer = Producer({"bootstrap.servers": topic.broker.address}, logger=CLIENT_LOG)
    producer.produce(topic.name, b"\xff not JSON", "shop")
    producer.produce(topic.name, None, "shop")
    producer.flush(20)
    topic.send("mine", key="shop")
    wait_until(lambda: topic.poll(channel) == 1, "the signal does not come")
    channel.close()
    assert topic.tables() == ["mine"]


@pytest.mark.campaign
def test_signals_in_a_partition_that_was_added_are_read(topic: Topic) -> None:
    channel = topic.channel()
    topic.poll(channel)
    channel.close()
    admin = AdminClient({"bootstrap.servers": topic.broker.address}, logger=CLIENT_LOG)
    count = len(admin.list_topics(topic.name, timeout=10).topics[topic.name].partitions)
    for future in admin.create_partitions([NewPartitions(topic.name, count + 1)]).values():
        future.result(20)
    wait_until(
        lambda: len(admin.list_topics(topic.name, timeout=10).topics[topic.name].partitions) > count,
        "no partition",
    )
    topic.send("in.the.new.partition", partition=count)
    channel = topic.channel()
    wait_until(lambda: topic.poll(channel) == 1, "the signal does not come")
    channel.close()


def test_a_topic_that_appears_later_is_read_from_then_on(broker: KafkaBroker) -> None:
    topic = Topic(broker, "signals-that-come-later")
    channel = topic.channel()
    assert topic.poll(channel) == 0
    create(broker, topic.name)
    wait_until(lambda: topic.poll(channel) == 0 and topic.progress.channels != (), "the topic is not opened")
    topic.send("first")
    wait_until(lambda: topic.poll(channel) == 1, "the signal does not come")
    channel.close()
