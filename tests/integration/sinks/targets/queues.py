"""Targets that are queues: Kafka and Pub/Sub."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from penstock.event import ChangeEvent
from penstock.transforms.formats.formatted import FormattedRecord
from tests.integration.sinks.source import BAD_OWNER, Truth, owner_key
from tests.integration.sinks.targets.faults import log_faults
from tests.integration.sinks.targets.target import EmulatedTarget, Options, Refused, TargetUnderTest
from tests.oracle.kill import FileAppears, Moment


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A format of Kafka and Pub/Sub: the key, and the time of the event. It shows in the hooks that a batch is sent."""

    hooks: str
    name: str
    refuses_bad: bool = False

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        owner, slot = owner_key(event)
        if event.timestamp % 20_000_000_000 == 0:
            Path(self.hooks, f"{self.name}-{event.id}").touch()
        value = f"{owner} {slot} {event.timestamp}"
        if owner == BAD_OWNER:
            if self.refuses_bad:
                raise ValueError("no message can express the event")
            value = "x" * 50_000
        key = f"{owner}/{slot}".encode()
        return [FormattedRecord("counts", key, value.encode(), event.timestamp, event.version)]


class Kafka(TargetUnderTest):
    """Two topics of a Kafka broker: transactional and idempotent."""

    outage = "the broker is killed and started again"
    _repeated = 0

    def start(self) -> None:
        from penstock.emulators.kafka import KafkaBroker

        self._broker = KafkaBroker.start()

    def options(self) -> Options:
        return {"servers": self._broker.address, "hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.kafka import WriteToKafka

        refused = {}
        for guarantee in ("transactional", "idempotent"):
            sink = WriteToKafka(
                options["servers"],
                format=RecordFormat(options["hooks"], guarantee),
                topic=guarantee,
                guarantee=guarantee,  # type: ignore[arg-type]
                partitions=3,
                # The retention counts from the commit times of the source, which are long ago.
                topic_config={"max.message.bytes": "20000", "retention.ms": "-1"},
                config={"compression.type": "none"},
                shards=2,
            ).with_exception_handling()
            refused[f"kafka-{guarantee}"] = (events | guarantee >> sink)[1]
        return refused

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "transactional-*")

    def take_down(self) -> None:
        self._broker.kill()

    def bring_back(self) -> None:
        self._broker.restart()

    def faults(self, truth: Truth) -> list[str]:
        committed, idempotent = self._read("transactional"), self._read("idempotent")
        self._repeated = len(idempotent) - len(set(idempotent))
        return log_faults("Kafka transactional", committed, truth) + log_faults(
            "Kafka idempotent", idempotent, truth, repeats=True
        )

    def figures(self) -> dict[str, Any]:
        return {"repeated events of the idempotent topic": self._repeated}

    def _read(self, topic: str) -> list[tuple[str, int, int]]:
        from tests.integration.kafka.conftest import read_all

        return [message_entry(message.value() or b"") for message in read_all(self._broker.address, topic)]

    def stop(self) -> None:
        self._broker.stop()


def message_entry(value: bytes) -> tuple[str, int, int]:
    """Return the entry of a log from the value of a message."""
    owner, slot, time = value.decode().split()
    return owner, int(slot), int(time)


class PubSub(EmulatedTarget):
    """A topic of Pub/Sub, whose subscription has message ordering."""

    def start(self) -> None:
        from google.cloud import pubsub_v1

        from penstock.emulators.pubsub import PubSubEmulator

        self._emulator = PubSubEmulator.start()
        os.environ["PUBSUB_EMULATOR_HOST"] = self._emulator.host
        self._subscriber = pubsub_v1.SubscriberClient()
        topic = self._subscriber.topic_path("penstock-tests", "counts")
        self._subscription = self._subscriber.subscription_path("penstock-tests", "counts")
        pubsub_v1.PublisherClient().create_topic(name=topic)
        settings = {"name": self._subscription, "topic": topic, "enable_message_ordering": True}
        self._subscriber.create_subscription(request=settings)
        # Messages are taken during the run, because the emulator holds all others in memory.
        self._taken: list[Any] = []
        self._ended = threading.Event()
        self._consumer = threading.Thread(target=self._consume)
        self._consumer.start()

    def options(self) -> Options:
        return {"hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.pubsub import WriteToPubSub

        format_ = RecordFormat(options["hooks"], "pubsub", refuses_bad=True)
        sink = WriteToPubSub(project="penstock-tests", topic="counts", format=format_, shards=2)
        return {"pubsub": (events | "Pub/Sub" >> sink.with_exception_handling())[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "pubsub-*")

    def faults(self, truth: Truth) -> list[str]:
        self._ended.set()
        self._consumer.join()
        by_id = {each.attributes["penstock_id"]: each for each in self._taken}
        self._repeated = len(self._taken) - len(by_id)
        entries = [message_entry(each.data) for each in by_id.values()]
        return log_faults("Pub/Sub", entries, truth, ordered=False)

    def figures(self) -> dict[str, Any]:
        return {"repeated messages": self._repeated}

    def _consume(self) -> None:
        from google.api_core import exceptions

        quiet = False
        while not (quiet and self._ended.is_set()):
            try:
                answer = self._subscriber.pull(
                    subscription=self._subscription, max_messages=1000, timeout=5, retry=None
                )
            except (exceptions.DeadlineExceeded, exceptions.ServiceUnavailable):
                quiet = True
                continue
            found = answer.received_messages
            quiet = not found
            self._taken += [received.message for received in found]
            if ids := [received.ack_id for received in found]:
                self._subscriber.acknowledge(subscription=self._subscription, ack_ids=ids)

    def stop(self) -> None:
        self._ended.set()
        super().stop()
