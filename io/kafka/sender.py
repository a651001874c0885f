"""Producers of Kafka: one transaction per batch, or idempotent records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.io.kafka.errors import (
    CLIENT_LOG,
    classify_error,
    is_permanent,
    is_row_error,
    unreachable_broker,
)
from penstock.io.kafka.ledger import LEDGER_CONFIG, Ledger, StoredEntry
from penstock.io.kafka.target import KafkaTarget
from penstock.io.kafka.values import COMPLETE_UNTIL, Record, records_of, topics_of
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
    is_delivered,
)

_REQUEST_SECONDS = 30.0
"""Time limit of one request to the brokers, such as the creation of a topic."""
_TOPICS_AT_ONCE = 100
"""Topics that one request creates."""
_METADATA_SECONDS = 5.0
"""Time limit of one try to get the list of topics; a refused login is noticed after each."""
_FLUSH_SECONDS = 60.0
"""Time limit for sending a batch and for ending its transaction."""
_POLL_RECORDS = 100
"""Records between two calls that take reports: a call for each would cost a fifth of the sending."""
_POLL_SECONDS = 0.005
"""Time of one wait until records are delivered. Only those that are not delivered end it early, by their reports."""
_CLOSE_SECONDS = 10.0
"""Time limit for the delivery reports of records that a producer gives up."""

_NOT_KNOWN_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)


class KafkaSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(self, target: KafkaTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._transactions: dict[str, _Writer] = {}
        self._producer: _Producer | None = None
        self._refused: KafkaError | None = None
        # A dict, because it keeps the order.
        self._unreachable: dict[str, None] = {}
        # Keep the client in a field: if it is garbage-collected, its futures fail.
        settings: dict[str, Any] = {**target.client_settings(), "error_cb": self._take_error}
        self._admin = AdminClient(settings, logger=CLIENT_LOG)
        self._topics: set[str] = set()
        if target.transactional:
            with self._errors():
                self._create({target.ledger_topic} - self._existing(), 1, LEDGER_CONFIG)

    def check(self) -> None:
        """Ask for the topics, and for the topic of the sink if it is one and is not to be created.

        Raises:
            KafkaTargetError, TargetUnavailableError: the brokers refuse or do not answer, or there is no such topic.
        """
        target = self._target
        with self._errors():
            known = self._existing()
            if "{" not in target.topic and not target.create_topics and target.topic not in known:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Produce the batch; see `Sender.send`."""
        with self._errors():
            if not self._target.transactional:
                return self._send_idempotently(events)
            attempt = _Attempt()
            while True:
                writer = self._writer(delivery.writer)
                stored = writer.entry
                if is_delivered(stored.entry if stored else None, delivery):
                    return Sent(stored.refusals if stored else ())
                sent = self._send_in_transaction(writer, delivery, events, attempt)
                if sent is not None:
                    return sent
                # Use a new producer for the next try: after a refused record, the next transaction of the same producer
                # may fail too (librdkafka 2.16: "skipped sequence numbers").
                self._transactions.pop(delivery.writer).close()

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Add a mark to the topic of marks; see `penstock.publish.MarksComplete`."""
        mark = Mark.of(job, sink, record, until_us)
        topic = self._target.complete_topic
        with self._errors():
            self._create({topic} - self._existing(), 1, LEDGER_CONFIG)
            # The ledger has the number of the last mark. To open the writer fences the producer of a driver that was
            # paused between its comparison and its commit.
            writer = self._writer(f"{sink}/{job}/complete")
            if writer.entry is not None and record <= writer.entry.epoch:
                return
            attempt = _Attempt()
            headers = [(COMPLETE_UNTIL, mark.complete_until.encode())]
            key = f"{sink}/{job}".encode()
            writer.producer.begin_transaction()
            writer.open.produce([Record(0, topic, key, mark.encoded, until_us // 1000, headers)], attempt)
            attempt.raise_error()
            writer.commit(StoredEntry(0, record), attempt)

    def close(self) -> None:
        for writer in self._transactions.values():
            writer.close()
        self._transactions.clear()
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _send_in_transaction(
        self, writer: _Writer, delivery: Delivery, events: EventBatch, attempt: _Attempt
    ) -> Sent | None:
        """Commit the batch and its entry in the ledger; return None if a record was refused and nothing committed."""
        records = self._records(events, attempt)
        writer.producer.begin_transaction()
        # The transaction holds the ledger, so all records must be in before it is written.
        writer.open.produce(records, attempt)
        if attempt.failed:
            # A transaction with a refused record can only be aborted, which `close` of the writer does.
            attempt.prepare_next()
            return None
        sent = attempt.sent()
        entry = StoredEntry(*delivery.position, tuple((each.index, each.reason) for each in sent.refused))
        writer.commit(entry, attempt)
        return sent

    def _send_idempotently(self, events: EventBatch) -> Sent:
        if self._producer is None:
            self._producer = _Producer(self._target.producer_settings(None))
        attempt = _Attempt()
        while True:
            records = self._records(events, attempt)
            self._producer.produce(records, attempt)
            # Send the batch again from its start, so that no record comes after a later one of its key.
            if not attempt.failed:
                return attempt.sent()
            attempt.prepare_next()

    def _records(self, events: EventBatch, attempt: _Attempt) -> list[Record]:
        """Return the records without those that are refused, and create their topics."""
        target = self._target
        records, unformatted = records_of(events, target.format, target.topic, frozenset(attempt.refused))
        attempt.refused |= {each.index: each for each in unformatted}
        if attempt.refused and not self._skip_refused:
            raise RefusalError(attempt.refused[min(attempt.refused)])
        self._create_topics(records)
        return list(self._for_partitions(records))

    def _for_partitions(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield records, but of SCHEMA events one for each partition: any of them may get the rows that follow."""
        for record in records:
            if not record.is_schema:
                yield record
                continue
            # Asked each time, because a topic may get more partitions.
            for partition in self._partitions_of(record.topic):
                yield msgspec.structs.replace(record, partition=partition)

    def _partitions_of(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of a topic that exists."""
        deadline = time.monotonic() + _REQUEST_SECONDS
        while True:
            found = self._admin.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
            if found.error is None and found.partitions:
                return sorted(found.partitions)
            # Right after its creation a broker may not know the topic, or its leaders.
            error = found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            if error.code() not in _NOT_KNOWN_YET or time.monotonic() > deadline:
                raise KafkaException(error)
            time.sleep(_POLL_SECONDS)

    def _writer(self, name: str) -> _Writer:
        writer = self._transactions.get(name)
        if writer is None:
            writer = self._transactions[name] = _Writer(self._target, name)
        return writer

    def _create_topics(self, records: Sequence[Record]) -> None:
        """Create the topics that are missing, or raise an error if that is not wanted."""
        target = self._target
        unknown = topics_of(records) - self._topics
        if not unknown:
            return
        missing = unknown - self._existing()
        if missing and not target.create_topics:
            # A producer would wait for the topic until the records time out.
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        self._create(missing, target.partitions, dict(target.topic_config))
        self._topics |= unknown

    def _create(self, topics: Collection[str], partitions: int, config: dict[str, str]) -> None:
        new = [
            NewTopic(topic, partitions, self._target.replication_factor, config=config)
            for topic in sorted(topics)
        ]
        for first in range(0, len(new), _TOPICS_AT_ONCE):
            some = new[first : first + _TOPICS_AT_ONCE]
            for answer in self._admin.create_topics(some, operation_timeout=_REQUEST_SECONDS).values():
                try:
                    answer.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

    def _existing(self) -> frozenset[str]:
        """Return the topics that exist."""
        deadline = time.monotonic() + _REQUEST_SECONDS
        self._unreachable.clear()
        while True:
            try:
                # Ask for all topics: a broker may create a topic that a client asks for by name, with other settings.
                topics = self._admin.list_topics(timeout=_METADATA_SECONDS).topics
                return frozenset(name for name, topic in topics.items() if topic.error is None)
            except KafkaException:
                self._admin.poll(0)  # calls `_take_error`
                if self._refused is not None or time.monotonic() > deadline:
                    raise

    def _take_error(self, error: KafkaError) -> None:
        # librdkafka (read in 2.16) repeats a refused login without end. A request that waits for it only times out.
        if is_permanent(error):
            self._refused = error
        if (unreachable := unreachable_broker(error)) is not None:
            self._unreachable[unreachable] = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            cause = self._refused or error.args[0]
            raise classify_error(cause, self._target.name, self._unreachable) from error


class _Writer:
    """The producer of one writer, which is the only one that can commit since it was opened, and its ledger."""

    def __init__(self, target: KafkaTarget, writer: str) -> None:
        # A transactional id is a name in Kafka's logs and access rules, where a hash has a fixed length.
        name = hashlib.blake2b(writer.encode(), digest_size=12).hexdigest()
        self.open = _Producer(target.producer_settings(f"penstock-{name}"))
        self.ledger = Ledger(target.client_settings(), target.ledger_topic, writer, name)
        # First this, then the ledger: it fences older producers of the id and aborts their transaction. So the ledger
        # cannot change after it was read, unless this producer is fenced too.
        self.producer = self.open.client
        # A client without a connection looks for its coordinator half a second later (librdkafka 2.16).
        self.producer.list_topics(target.ledger_topic, timeout=_REQUEST_SECONDS)
        self.producer.init_transactions(_REQUEST_SECONDS)
        self.entry: StoredEntry | None = self.ledger.read()

    def commit(self, entry: StoredEntry, attempt: _Attempt) -> None:
        """End the open transaction with an entry in the ledger."""
        self.ledger.write(self.producer, entry)
        self.open.flush(attempt)
        self.producer.commit_transaction(_FLUSH_SECONDS)
        self.entry = entry

    def close(self) -> None:
        # An abort waits for records in flight; after a refused record some of them end only by `message.timeout.ms`
        # (librdkafka 2.16).
        self.producer.purge()
        # A transaction that stays open hides later records from readers until it times out.
        with suppress(KafkaException):
            self.producer.abort_transaction(1)
        self.open.close()
        with suppress(KafkaException):
            self.ledger.close()


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Reports of records that an aborted transaction has dropped."""


_Content = tuple[str, bytes, bytes]
"""Topic, key and value of a record; none is like an empty one."""


class _Attempt:
    """The tries to write one batch: which records are refused, and which are to be sent alone to find that out."""

    def __init__(self) -> None:
        self.refused: dict[int, Refusal] = {}
        self.alone: set[int] = set()
        self._suspects: set[int] = set()
        self._changed = False
        self._error: KafkaError | None = None
        self._records: Sequence[Record] = ()
        self._indices: dict[_Content, set[int]] = {}

    def begin(self, records: Sequence[Record]) -> None:
        """Begin a try to write these records."""
        self._records, self._indices = records, {}

    def report(self, error: KafkaError, message: Message) -> None:
        """Take the report of a record that was not delivered, and was sent with others."""
        if error.code() in _PURGED:
            return
        if is_row_error(error):
            # A broker refuses the records of a request together, because of one of them.
            self._suspects |= self._indices_of(message)
        else:
            self._error = error

    def report_alone(self, index: int, error: KafkaError, _: Message | None = None) -> None:
        """Take the report of the record with this index, which was not delivered and was sent alone."""
        if error.code() in _PURGED:
            return
        if is_row_error(error):
            self.refused[index] = Refusal(index, f"Kafka says {error.name()}")
            self._changed = True
        else:
            self._error = error

    def _indices_of(self, message: Message) -> set[int]:
        """Return the indices of the records with the content of this one: a report has no headers and no index."""
        # A callback for each record, which knows its index, would cost half of the sending.
        if not self._indices:
            for each in self._records:
                content = each.topic, each.key or b"", each.value or b""
                self._indices.setdefault(content, set()).add(each.index)
        return self._indices[message.topic() or "", message.key() or b"", message.value() or b""]

    @property
    def failed(self) -> bool:
        """Whether a record of the current try was not written."""
        return self._changed or bool(self._suspects) or self._error is not None

    def prepare_next(self) -> None:
        """Prepare the next try.

        Raises:
            KafkaException: a record was not written for a reason that is not its own.
        """
        if self._error is not None and not self._changed and not self._suspects:
            raise KafkaException(self._error)
        self.alone |= self._suspects
        self._suspects, self._changed, self._error = set(), False, None

    def raise_error(self) -> None:
        """Raise a KafkaException if a record of the current try was not written."""
        if self._error is not None or self._suspects:
            raise KafkaException(self._error or KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    def sent(self) -> Sent:
        return Sent(tuple(self.refused[index] for index in sorted(self.refused)))


class _Producer:
    """A client that produces records.

    After a fatal error (another producer took over) the client raises it in the middle of its callbacks. So callbacks
    are called by `Producer.poll` alone, which ends then. `Producer.flush` goes on to the next callback, with an
    exception set, and ends with a SystemError (confluent-kafka 2.16).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._transactional = "transactional.id" in settings
        # Reports of records that were delivered would cost a third of the sending.
        self.client = Producer({**settings, "delivery.report.only.error": True}, logger=CLIENT_LOG)

    def produce(self, records: Sequence[Record], attempt: _Attempt) -> None:
        """Produce records, and return when the broker has answered for each."""
        attempt.begin(records)
        for number, record in enumerate(records):
            if number % _POLL_RECORDS == 0:
                self.client.poll(0)
            alone = record.index in attempt.alone
            if alone:
                self.flush(attempt)
            if self._transactional and attempt.failed:
                return
            try:
                _produce_one(self.client, record, attempt)
            except KafkaException as error:
                if self._transactional and error.args[0].code() == KafkaError._FATAL:
                    # Says why the client takes no more records: by raising it.
                    self.client.abort_transaction(_CLOSE_SECONDS)
                raise
            if alone:
                self.flush(attempt)
        self.flush(attempt)

    def flush(self, attempt: _Attempt) -> None:
        """Return when the broker has answered for each record, or when the transaction has failed.

        Raises:
            KafkaException: another producer took over, or the broker does not answer.
        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        while len(self.client):
            self.client.poll(_POLL_SECONDS)
            if self._transactional and attempt.failed:
                return  # records stay in the queue after a refusal
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def close(self) -> None:
        """Drop the records that are not sent, and wait for their reports."""
        # A client that is deleted with reports in its queue damages the memory of the process (librdkafka 2.16).
        deadline = time.monotonic() + _CLOSE_SECONDS
        self.client.purge()
        while len(self.client) and time.monotonic() < deadline:
            with suppress(KafkaException):
                self.client.poll(_POLL_SECONDS)


def _produce_one(producer: Producer, record: Record, attempt: _Attempt) -> None:
    report: Any = attempt.report
    headers: Any = record.headers  # its declared type is an invariant list
    if record.index in attempt.alone:
        report = partial(attempt.report_alone, record.index)
    while True:
        try:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                partition=record.partition,
                on_delivery=report,
                timestamp=record.timestamp_ms,
                headers=headers,
            )
            return
        except BufferError:
            producer.poll(0.1)  # the queue of the client is full: serve delivery reports until there is room
        except KafkaException as error:
            # A transaction that has failed takes no records. The report with the reason comes with the next flush.
            if error.args[0].code() == KafkaError._STATE:
                return
            if not is_row_error(error.args[0]):
                raise
            attempt.alone.add(record.index)  # the client itself refuses it
            attempt.report_alone(record.index, error.args[0])
            return
