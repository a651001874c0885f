"""Targets that are queues: Kafka and Pub/Sub."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock.transforms.formats.formatted import FormattedRecord
from penstock_emulators.oracle.kill import FileAppears, Moment
from tests.support.sinks.faults import log_faults
from tests.support.sinks.source import BAD_OWNER, Truth, owner_key
from tests.support.sinks.target import EmulatedTarget, Options, Refused, TargetUnderTest, apply
from tests.support.waiting import join, wait_until


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

    error_outputs = ("kafka-transactional", "kafka-idempotent")
    marked = "kafka-transactional"
    waits = True
    outage = "the broker is killed and started again"
    _repeated = 0

    def start(self) -> None:
        from penstock_emulators.kafka import KafkaBroker
        from penstock_emulators.server_process import free_port

        if self.network is None:
            self._broker = KafkaBroker.start()
            return
        proxy = self.network.before()

        class Advertised(KafkaBroker):
            """A broker whose clients go through the proxy, also after they have asked it for its address.

            Its own requests have a listener of their own: it asks its coordinator about each transaction, and would
            answer no producer while one of these requests is held.
            """

            def _format(self) -> None:
                super()._format()
                own = f"OWN://127.0.0.1:{free_port()}"
                self._settings.write_text(f"""{self._settings.read_text()}
listeners=PLAINTEXT://127.0.0.1:{self._port},{own},CONTROLLER://{self._controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port},{own}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OWN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=OWN
""")

        self._broker = Advertised.start()
        proxy.target = int(self._broker.address.rpartition(":")[2])
        self._proxied = f"127.0.0.1:{proxy.port}"

    def create(self, place: str) -> None:
        self._place = place

    def options(self) -> Options:
        config = {"compression.type": "none"}
        servers = self._broker.address
        if self.network is not None:
            servers = self._proxied
            # librdkafka repeats requests by itself for as long as this.
            config |= {"message.timeout.ms": "2000", "reconnect.backoff.max.ms": "100", "linger.ms": "0"}
        return {"servers": servers, "hooks": str(self.hooks), "place": self._place, "config": config}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.kafka import WriteToKafka

        refused: Refused = {}
        for guarantee in ("transactional", "idempotent"):
            sink = WriteToKafka(
                options["servers"],
                format=RecordFormat(options["hooks"], guarantee),
                topic=f"{options['place']}-{guarantee}",
                guarantee=guarantee,  # type: ignore[arg-type]
                partitions=3,
                # The retention counts from the commit times of the source, which are long ago.
                topic_config={"max.message.bytes": "20000", "retention.ms": "-1"},
                config=options["config"],
                shards=2,
                mark_complete=guarantee == "transactional",
                complete_topic=f"{options['place']}-complete",
            )
            refused |= apply(events, f"kafka-{guarantee}", sink, error_output)
        return refused

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        for limit, seconds in (("REQUEST", 10.0), ("METADATA", 0.5), ("FLUSH", 3.0)):
            patch.setattr(f"penstock.io.kafka.sender._{limit}_SECONDS", seconds)
        patch.setattr("penstock.io.kafka.ledger._REQUEST_SECONDS", 5.0)

    def lose_patience(self, patch: pytest.MonkeyPatch) -> None:
        for limit in ("sender._REQUEST", "sender._FLUSH", "ledger._REQUEST"):
            patch.setattr(f"penstock.io.kafka.{limit}_SECONDS", 1.5)

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "transactional-*")

    def take_down(self) -> None:
        self._broker.kill()

    def bring_back(self) -> None:
        self._broker.restart()

    def faults(self, truth: Truth) -> list[str]:
        committed, idempotent = self.log(), self._read("idempotent")
        self._repeated = len(idempotent) - len(set(idempotent))
        return log_faults("Kafka transactional", committed, truth) + log_faults(
            "Kafka idempotent", idempotent, truth, repeats=True
        )

    def figures(self) -> dict[str, Any]:
        return {"repeated events of the idempotent topic": self._repeated}

    def complete(self) -> dict[str, datetime]:
        from penstock.io.kafka import complete_until

        return complete_until(self._address, topic=f"{self._place}-complete")

    def log(self) -> list[tuple[str, int, int]]:
        return self._read("transactional")

    def _read(self, guarantee: str) -> list[tuple[str, int, int]]:
        from tests.integration.kafka.conftest import read_all

        messages = read_all(self._address, f"{self._place}-{guarantee}", open_seconds=70)
        return [message_entry(message.value() or b"") for message in messages]

    @property
    def _address(self) -> str:
        return self._broker.address if self.network is None else self._proxied

    def stop(self) -> None:
        self._broker.stop()


def message_entry(value: bytes) -> tuple[str, int, int]:
    """Return the entry of a log from the value of a message."""
    owner, slot, time = value.decode().split()
    return owner, int(slot), int(time)


class PubSub(EmulatedTarget):
    """A topic of Pub/Sub, whose subscription has message ordering."""

    error_outputs = ("pubsub",)
    marked = "pubsub"
    waits = True
    has_ledger = False
    _repeated = 0
    _consumer: threading.Thread | None = None

    def start(self) -> None:
        from google.cloud import pubsub_v1

        from penstock_emulators.pubsub import PubSubEmulator

        self._emulator = PubSubEmulator.start()
        os.environ["PUBSUB_EMULATOR_HOST"] = self._emulator.host
        self._subscriber = pubsub_v1.SubscriberClient()

    def create(self, place: str) -> None:
        from google.cloud import pubsub_v1

        from penstock.io.pubsub import CompleteTimes

        self._end_consumer()
        topic = self._subscriber.topic_path("penstock-tests", place)
        self._place, self._subscription = (
            place,
            self._subscriber.subscription_path("penstock-tests", place),
        )
        publisher = pubsub_v1.PublisherClient()
        publisher.create_topic(name=topic)
        publisher.create_topic(name=f"{topic}-complete")
        publisher.transport.close()
        settings = {"name": self._subscription, "topic": topic, "enable_message_ordering": True}
        self._subscriber.create_subscription(request=settings)
        self._marks = f"{self._subscription}-complete"
        self._subscriber.create_subscription(name=self._marks, topic=f"{topic}-complete")
        self._times, self._empty_pulls = CompleteTimes(), 0
        # Messages are taken during the run, because the emulator holds all others in memory.
        self._taken: list[Any] = []
        self._ended = threading.Event()
        self._consumer = threading.Thread(target=self._consume, daemon=True)
        self._consumer.start()

    def options(self) -> Options:
        return {"topic": self._place, "hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.pubsub import WriteToPubSub

        format_ = RecordFormat(options.pop("hooks"), "pubsub", refuses_bad=True)
        sink = WriteToPubSub(
            project="penstock-tests",
            format=format_,
            shards=2,
            mark_complete=True,
            complete_topic=f"{options['topic']}-complete",
            **options,
        )
        return apply(events, "pubsub", sink, error_output)

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "pubsub-*")

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        super().carry(patch)
        # The client publishes from its own threads, and asks again for longer than a test may wait.
        patch.setattr("penstock.io.pubsub.sender._ANSWER_SECONDS", 0.5)

    def wait_for_held(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("penstock.io.pubsub.sender._ANSWER_SECONDS", 60.0)

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        from google.cloud.pubsub_v1 import types

        few = (types.BatchSettings().max_bytes, 0.001, 3)
        patch.setattr(types.BatchSettings.__new__, "__defaults__", few)

    def faults(self, truth: Truth) -> list[str]:
        self._end_consumer()
        by_id = {each.attributes["penstock_id"]: each for each in self._taken}
        self._repeated = len(self._taken) - len(by_id)
        entries = [message_entry(each.data) for each in by_id.values()]
        return log_faults("Pub/Sub", entries, truth, ordered=False)

    def ordering_keys(self) -> set[str]:
        """The ordering keys of the messages, after `faults`."""
        return {each.ordering_key for each in self._taken}

    def figures(self) -> dict[str, Any]:
        return {"repeated messages": self._repeated}

    def complete(self) -> dict[str, datetime]:
        for message in self._pull(self._marks):
            self._times.add(message.data)
        return self._times.complete_until()

    def log(self) -> list[tuple[str, int, int]]:
        # The next two pulls without a message: the first one may have begun before this call.
        enough = self._empty_pulls + 2
        wait_until(lambda: self._empty_pulls >= enough, "the subscription was never empty")
        by_id = {each.attributes["penstock_id"]: each for each in list(self._taken)}
        return [message_entry(each.data) for each in by_id.values()]

    def _consume(self) -> None:
        from google.api_core import exceptions

        ended, quiet, seconds = False, False, 5.0 if self.network is None else 0.5
        while not (quiet and ended):
            ended = self._ended.is_set()
            try:
                # The last pull waits: one that does not may find nothing while the next message of a key still comes.
                found = self._pull(self._subscription, seconds, waits=ended)
            except (exceptions.DeadlineExceeded, exceptions.ServiceUnavailable):
                quiet = True
                self._ended.wait(0.1)  # an emulator that is down refuses at once
                continue
            self._taken += found
            quiet = not found
            if quiet:
                self._empty_pulls += 1
                self._ended.wait(0.1)

    def _pull(self, subscription: str, seconds: float = 5.0, *, waits: bool = False) -> list[Any]:
        """Return the messages that the subscription has now, [] if there are none; `waits`: until it has one."""
        # A pull that waits is never empty while the pipeline runs.
        request = {"subscription": subscription, "max_messages": 1000, "return_immediately": not waits}
        answer = self._subscriber.pull(request=request, timeout=seconds, retry=None)
        if ids := [received.ack_id for received in answer.received_messages]:
            self._subscriber.acknowledge(subscription=subscription, ack_ids=ids)
        return [received.message for received in answer.received_messages]

    def _end_consumer(self) -> None:
        """Wait until the consumer has taken all messages: one that goes on would read from the next emulator."""
        if self._consumer is not None:
            self._ended.set()
            join(self._consumer)

    def stop(self) -> None:
        self._end_consumer()
        self._subscriber.close()
        super().stop()
