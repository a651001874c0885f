"""The ledger of a transactional sink: the offset of a group per writer, and a copy in a compacted topic.

Both are written in the transaction of the records. The offset is read in one request. Brokers forget the offsets of an
idle group after `offsets.retention.minutes` (seven days by default), and then the copy counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from penstock.io.kafka.errors import CLIENT_LOG
from penstock.io.staging.delivery import LedgerEntry, Refusal

LEDGER_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Settings of a new ledger topic. A broker compacts closed segments only, and by default closes one after a gigabyte or
seven days. A writer without an offset reads what is not compacted."""
_REQUEST_SECONDS = 30.0
_GRACE_SECONDS = 1.0
"""How much longer than its limit a request may take before it is given up."""


class StoredEntry(msgspec.Struct, frozen=True):
    """The last delivery of a writer, as the ledger has it."""

    generation: int
    epoch: int
    driver: str = ""
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def entry(self) -> LedgerEntry:
        return LedgerEntry(self.generation, self.epoch, self.driver)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(Refusal(*each) for each in self.refused)


MAX_METADATA = 4096
"""Bytes that Kafka stores with an offset (`offset.metadata.max.bytes`)."""


def encode_entry(entry: StoredEntry) -> bytes:
    """Return the entry as JSON."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes | str) -> StoredEntry:
    """Return the entry of `encode_entry`.

    Raises:
        ValueError: the bytes are no entry.
    """
    return msgspec.json.decode(data, type=StoredEntry)


class Ledger:
    """The entry of one writer. `config` are the settings of a client, `topic` the compacted topic."""

    def __init__(self, config: dict[str, Any], topic: str, writer: str, name: str) -> None:
        self._topic, self._writer = topic, writer
        # The group never subscribes, so it has no members and no rebalances: it only stores an offset.
        self._consumer = Consumer(reader_settings(config, f"penstock-{name}"), logger=CLIENT_LOG)

    def read(self) -> StoredEntry | None:
        """Return the last delivery of the writer, or None if there is none.

        Raises:
            KafkaException: the broker did not answer.
        """
        (found,) = self._consumer.committed([TopicPartition(self._topic, 0)], timeout=_REQUEST_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        if found.offset >= 0 and found.metadata:
            return decode_entry(found.metadata)
        return self._read_copy()

    def write(self, producer: Producer, entry: StoredEntry) -> None:
        """Add the entry to the open transaction of a producer."""
        encoded = encode_entry(entry)
        producer.produce(self._topic, encoded, self._writer.encode(), partition=0)
        # An empty text makes the next read take the copy.
        metadata = encoded.decode() if len(encoded) <= MAX_METADATA else ""
        offset = TopicPartition(self._topic, 0, entry.epoch + 1, metadata=metadata)
        group = self._consumer.consumer_group_metadata()
        # librdkafka (tried with 2.16) counts its limit from answers: while no connection holds, it repeats the request
        # for minutes.
        _within(
            _REQUEST_SECONDS, lambda: producer.send_offsets_to_transaction([offset], group, _REQUEST_SECONDS)
        )

    def close(self) -> None:
        self._consumer.close()

    def _read_copy(self) -> StoredEntry | None:
        value = newest_values(self._consumer, self._topic).get(self._writer.encode())
        return None if value is None else decode_entry(value)


def reader_settings(config: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings of a consumer for `newest_values`. It stores offsets only if it is told to."""
    return {
        **config,
        "group.id": group,
        "enable.auto.commit": False,
        # Otherwise a record or an offset would be read that belongs to an open transaction.
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # Longer than this a broker would wait for more records before it says that there are no more.
        "fetch.wait.max.ms": 10,
    }


def newest_values(consumer: Consumer, topic: str) -> dict[bytes, bytes]:
    """Read the only partition of a compacted topic from its beginning; return the last value of each key.

    Raises:
        KafkaException: the broker refuses, or did not answer.
    """
    # A client that does not know the leader of a partition looks for it half a second later (librdkafka 2.16).
    consumer.list_topics(topic, timeout=_REQUEST_SECONDS)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    newest: dict[bytes, bytes] = {}
    try:
        while True:
            message = consumer.poll(_REQUEST_SECONDS)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                if key is not None and value is not None:
                    newest[bytes(key)] = bytes(value)
            elif error.code() == KafkaError._PARTITION_EOF:
                return newest
            else:
                raise KafkaException(error)
    finally:
        consumer.unassign()


def _within(seconds: float, request: Callable[[], None]) -> None:
    """Run a request in a thread, and wait for it for a limited time.

    Raises:
        KafkaException: the error of the request, or a timeout. After a timeout the request may go on, and its producer
            must not be used again.
    """
    ended: Future[None] = Future()

    def run() -> None:
        try:
            request()
            ended.set_result(None)
        except BaseException as error:  # raised again in the thread that waits
            ended.set_exception(error)

    threading.Thread(target=run, name="penstock-kafka-ledger", daemon=True).start()
    try:
        ended.result(seconds + _GRACE_SECONDS)
    except FutureTimeoutError:  # another class than TimeoutError in Python 3.10
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
