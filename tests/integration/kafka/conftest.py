"""A Kafka broker as the target, deliveries as the runner makes them, and a consumer of its own."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.attempt import DriverToken
from penstock.event import ChangeEvent
from penstock.io.kafka.target import KafkaTarget
from penstock.io.kafka.write import connector_of
from penstock.io.staging.delivery import Delivery, Sender, Sent, TargetUnavailableError
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock_emulators.kafka import KafkaBroker

CLIENT_LOG = logging.getLogger("tests.kafka")
"""Where clients log. Without it librdkafka prints a line on standard error for each connection that fails."""
_NUMBERS = itertools.count()
_TRIES = 10
_OPEN_TRANSACTION_SECONDS = 3.0


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker that all tests share."""
    with KafkaBroker.start() as running:
        yield running


class Target:
    """The sink with topics of its own; each delivery goes through a new sender, as from a new process."""

    def __init__(self, broker: KafkaBroker, **options: Any) -> None:
        self.broker, self.server = broker, f"t{next(_NUMBERS)}"
        self.topic = f"{self.server}.public.orders"
        given = {"format": DebeziumFormat(self.server), "partitions": 3, **options}
        self.target = KafkaTarget(broker.address, **given)
        self.epoch = 0

    def open(self, *, skip_refused: bool = False) -> Sender:
        return connector_of(self.target).open(skip_refused=skip_refused)

    def delivery(self, epoch: int, generation: int = 1, token: str = "a") -> Delivery:
        return Delivery("sink", self.server, 0, 1, generation, epoch, (DriverToken(generation, token),))

    def deliver(self, events: list[ChangeEvent], *, epoch: int | None = None, **options: Any) -> Sent:
        """Send a batch as the next epoch, or as the given one."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        generation = options.pop("generation", 1)
        delivery = self.delivery(self.epoch, generation)
        skip_refused = options.pop("skip_refused", False)
        for left in reversed(range(_TRIES)):
            sender = self.open(skip_refused=skip_refused)
            try:
                return sender.send(delivery, events)
            except TargetUnavailableError:
                # The runner sends a batch again, with a new sender each time.
                if not left:
                    raise
            finally:
                sender.close()
        raise AssertionError("no try")

    def messages(self, topic: str | None = None, *, isolation: str = "read_committed") -> list[Message]:
        """Return the messages of a topic, partition by partition."""
        return read_all(self.broker.address, topic or self.topic, isolation)

    def ids(self) -> list[str]:
        """Return the event ids of the committed messages."""
        return [header(message, "penstock.id") for message in self.messages()]


def read_all(
    address: str,
    topic: str,
    isolation: str = "read_committed",
    open_seconds: float = _OPEN_TRANSACTION_SECONDS,
) -> list[Message]:
    """Return all messages of a topic up to its end. Open transactions are waited for, for this time."""
    _wait_for_open_transactions(address, topic, open_seconds)
    settings = {
        "bootstrap.servers": address,
        "group.id": "reader",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(
        {**settings, "isolation.level": isolation, "enable.auto.commit": False}, logger=CLIENT_LOG
    )
    found: dict[int, list[Message]] = {}
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        at_end: set[int] = set()
        while at_end != set(partitions):
            message = consumer.poll(30)
            assert message is not None, "the broker does not answer"
            error = message.error()
            if error is None:
                found.setdefault(message.partition() or 0, []).append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(message.partition() or 0)
    finally:
        consumer.close()
    return [message for number in sorted(found) for message in found[number]]


def _wait_for_open_transactions(address: str, topic: str, seconds: float) -> None:
    """Wait until the transactions that a topic has now have ended.

    A broker answers a commit before the partitions have the marker that shows the records to readers. The transaction
    of a process that was killed ends when another producer takes its id, or when its time is over.
    """
    admin = AdminClient({"bootstrap.servers": address}, logger=CLIENT_LOG)
    places = [TopicPartition(topic, number) for number in admin.list_topics(topic).topics[topic].partitions]

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = admin.list_offsets(
            {place: OffsetSpec.latest() for place in places}, isolation_level=isolation
        )
        return [asked[place].result(30).offset for place in places]

    deadline = time.monotonic() + seconds
    written = ends(IsolationLevel.READ_UNCOMMITTED)
    while any(map(int.__lt__, ends(IsolationLevel.READ_COMMITTED), written)):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def header(message: Message, name: str) -> str:
    return dict(message.headers() or [])[name].decode()


@pytest.fixture
def target(broker: KafkaBroker) -> Target:
    return Target(broker)
