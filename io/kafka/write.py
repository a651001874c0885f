"""`WriteToKafka`: change events into topics of Kafka."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from penstock.io.kafka.target import Guarantee, KafkaTarget
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.format import Format
from penstock.io.staging.retry import UNAVAILABLE_SECONDS
from penstock.io.staging.send_after_commit import SHARDS, SendAfterCommit


def connector_of(target: KafkaTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.kafka.sender:KafkaSender",
        preview_name="penstock.io.kafka.preview:written_records",
        extra="kafka",
    )


class WriteToKafka(SendAfterCommit):
    """Write change events to topics of Kafka, one topic per table, in a format such as Debezium's.

        events | WriteToKafka("broker:9092", format=DebeziumFormat("shop"))

    *transactional*: the records of a batch and its entry in the ledger are one transaction of Kafka. Consumers with
    ``isolation.level=read_committed`` see each event exactly once, also if a driver that was paused sends the batch
    again. *idempotent*: without transactions, for consumers that cannot read them or clusters that do not allow them.
    Then a batch may come again after a crash; the headers ``penstock.id`` and ``penstock.version`` of every record tell
    repeats, and records that are older than those before them.

    The key of a record is the format's. Records of one key are in one partition, by the partitioner of Kafka's Java
    client. Records without a key (TRUNCATE, messages) go to any partition.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that the format
    cannot express or that the broker refuses, for example because a record is too large.

    Order: the records of a key are in commit order in their partition. There is no order between keys.
    What repeats: nothing (transactional, on `PySparkRunner`, for read-committed consumers); batches (idempotent).
    Watermark: each event holds the output watermark until its transaction is committed.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Args:
        bootstrap_servers: addresses of brokers, ``host:port``, with commas between them.
        format: turns an event into records, such as ``DebeziumFormat("shop")``. A record with no value is a tombstone.
        topic: the name of a topic; ``{topic}`` is the format's own name, ``{table}``, ``{schema}`` and ``{database}``
            are the source's.
        guarantee: ``transactional`` or ``idempotent``.
        create_topics: create topics that are missing, with the three arguments that follow.
        partitions: partitions of a topic that is created; -1: the broker's default.
        replication_factor: replicas of a topic that is created; -1: the broker's default.
        topic_config: settings of a topic that is created, such as ``{"cleanup.policy": "compact"}``.
        ledger_topic: a compacted topic with one partition, which is created if it is missing.
        config: settings of librdkafka for all clients, such as ``security.protocol`` and ``sasl.password``.
        shards: how many transactions run at the same time.
        roll_seconds: how long events are collected before they are sent, in seconds of processing time; 0 sends with
            every epoch.
        staging: a folder or URL for staged batches; None: in the checkpoint.
        unavailable_seconds: how long brokers that do not answer are asked again before the epoch fails, in
            seconds.

    Raises:
        UsageError: an argument is wrong (at construction).
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        format: Format,
        topic: str = "{topic}",
        guarantee: Guarantee = "transactional",
        create_topics: bool = True,
        partitions: int = -1,
        replication_factor: int = -1,
        topic_config: Mapping[str, str] | None = None,
        ledger_topic: str = "penstock-ledger",
        config: Mapping[str, Any] | None = None,
        shards: int = SHARDS,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
    ) -> None:
        check_choice("guarantee", guarantee, get_args(Guarantee))
        check_placeholders("topic", topic, ("topic", *SOURCE_NAMES))
        target = KafkaTarget(
            bootstrap_servers,
            format,
            topic,
            guarantee,
            create_topics,
            partitions,
            replication_factor,
            tuple((topic_config or {}).items()),
            ledger_topic,
            dict(config or {}),
        )
        super().__init__(
            connector_of(target),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            unavailable_seconds=unavailable_seconds,
        )
        self._kafka = target

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "topic": self._kafka.topic, "guarantee": self._kafka.guarantee}
