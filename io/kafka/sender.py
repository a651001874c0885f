"""Producers of Kafka: one transaction per batch, or idempotent records."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.io.kafka.errors import classify_error, concerns_a_row
from penstock.io.kafka.ledger import Ledger
from penstock.io.kafka.records import Record, StoredEntry, records_of, topics_of
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
    is_delivered,
)

if TYPE_CHECKING:
    from penstock.io.kafka.target import KafkaTarget

_REQUEST_SECONDS = 30.0
_FLUSH_SECONDS = 60.0

# librdkafka writes to stderr unless it gets a logger.
_librdkafka = logging.getLogger("penstock.io.kafka.librdkafka")


class KafkaSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(self, target: KafkaTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._transactions: dict[str, _Writer] = {}
        self._producer: Producer | None = None
        # In a field: the futures of a client that was collected fail.
        self._admin = AdminClient(target.client_settings(), logger=_librdkafka)
        self._topics: set[str] = set()
        if target.transactional:
            with self._errors():
                self._create(target.ledger_topic, 1, {"cleanup.policy": "compact"})

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Produce the batch; see `Sender.send`."""
        with self._errors():
            if not self._target.transactional:
                return self._send_idempotently(events)
            writer = self._writer(delivery.writer)
            stored = writer.entry
            if is_delivered(stored.entry if stored else None, delivery):
                return Sent(stored.refusals if stored else ())
            return self._send_in_transaction(writer, delivery, events)

    def close(self) -> None:
        for writer in self._transactions.values():
            writer.close()
        self._transactions.clear()
        self._producer = None

    def _send_in_transaction(self, writer: _Writer, delivery: Delivery, events: EventBatch) -> Sent:
        refused: dict[int, Refusal] = {}
        while True:
            records, unformatted = self._format(events, refused)
            refused |= {each.index: each for each in unformatted}
            self._stop_at(refused)
            self._create_topics(records)
            writer.producer.begin_transaction()
            bad = _Refused()
            _produce(writer.producer, records, bad)
            # The transaction holds the ledger, so all records must be in before it is written.
            writer.producer.flush(_FLUSH_SECONDS)
            if bad.refusals:
                # A transaction with a refused record can only be aborted. The next one leaves it out.
                writer.producer.abort_transaction(_FLUSH_SECONDS)
                refused |= bad.refusals
                continue
            sent = Sent(tuple(refused[index] for index in sorted(refused)))
            entry = StoredEntry(*delivery.position, tuple((each.index, each.reason) for each in sent.refused))
            writer.ledger.write(writer.producer, entry)
            writer.producer.commit_transaction(_FLUSH_SECONDS)
            writer.entry = entry
            return sent

    def _send_idempotently(self, events: EventBatch) -> Sent:
        if self._producer is None:
            self._producer = Producer(self._target.producer_settings(None), logger=_librdkafka)
        records, unformatted = self._format(events, {})
        refused = {each.index: each for each in unformatted}
        self._stop_at(refused)
        self._create_topics(records)
        bad = _Refused()
        _produce(self._producer, records, bad)
        if self._producer.flush(_FLUSH_SECONDS):
            raise TargetUnavailableError(
                f"{self._target.name} has not stored all records within {_FLUSH_SECONDS:g} s"
            )
        if bad.error is not None:
            raise KafkaException(bad.error)
        refused |= bad.refusals
        self._stop_at(refused)
        return Sent(tuple(refused[index] for index in sorted(refused)))

    def _format(self, events: EventBatch, refused: dict[int, Refusal]) -> tuple[list[Record], list[Refusal]]:
        return records_of(events, self._target.format, self._target.topic, frozenset(refused))

    def _stop_at(self, refused: dict[int, Refusal]) -> None:
        if refused and not self._skip_refused:
            raise RefusalError(refused[min(refused)])

    def _writer(self, name: str) -> _Writer:
        found = self._transactions.get(name)
        if found is None:
            found = self._transactions[name] = _Writer(self._target, name)
        return found

    def _create_topics(self, records: Sequence[Record]) -> None:
        target = self._target
        for topic in topics_of(records) - self._topics if target.create_topics else ():
            self._create(topic, target.partitions, dict(target.topic_config))

    def _create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        if not self._exists(topic):
            new = NewTopic(topic, partitions, self._target.replication_factor, config=config)
            try:
                self._admin.create_topics([new], operation_timeout=_REQUEST_SECONDS)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._topics.add(topic)

    def _exists(self, topic: str) -> bool:
        found = self._admin.list_topics(topic, timeout=_REQUEST_SECONDS).topics.get(topic)
        return found is not None and found.error is None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise classify_error(error.args[0], self._target.name) from error


class _Writer:
    """The producer of one writer, which is the only one that can commit since it was opened, and its ledger."""

    def __init__(self, target: KafkaTarget, writer: str) -> None:
        # A transactional id is a name in Kafka's logs and access rules, where a hash has a fixed length.
        name = hashlib.blake2b(writer.encode(), digest_size=12).hexdigest()
        self.producer = Producer(target.producer_settings(f"penstock-{name}"), logger=_librdkafka)
        self.ledger = Ledger(target.client_settings(), target.ledger_topic, writer, name)
        # First this, then the ledger: it fences older producers of the id and aborts their transaction. So the ledger
        # cannot change after it was read, unless this producer is fenced too.
        self.producer.init_transactions(_REQUEST_SECONDS)
        self.entry: StoredEntry | None = self.ledger.read()

    def close(self) -> None:
        # A transaction that stays open hides later records from readers until it times out.
        with suppress(KafkaException):
            self.producer.abort_transaction(1)
        with suppress(KafkaException):
            self.ledger.close()


class _Refused:
    """What delivery reports say about the records of one try."""

    def __init__(self) -> None:
        self.refusals: dict[int, Refusal] = {}
        self.error: KafkaError | None = None

    def report(self, index: int, error: KafkaError | None) -> None:
        if error is None:
            return
        if concerns_a_row(error):
            self.refusals[index] = Refusal(index, f"Kafka says {error.name()}")
        else:
            self.error = error


def _produce(producer: Producer, records: Sequence[Record], refused: _Refused) -> None:
    for record in records:
        _produce_one(producer, record, refused)


def _produce_one(producer: Producer, record: Record, refused: _Refused) -> None:
    def delivered(error: KafkaError | None, _: Message, index: int = record.index) -> None:
        refused.report(index, error)

    options: dict[str, Any] = {"headers": record.headers, "timestamp": record.timestamp_ms}
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, on_delivery=delivered, **options)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)  # the queue of the client is full: serve delivery reports until there is room
        except KafkaException as error:
            if not concerns_a_row(error.args[0]):
                raise
            refused.report(record.index, error.args[0])
            return
