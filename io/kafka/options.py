"""The options of the Kafka sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from penstock.io.staging.format import Format
from penstock.io.staging.options import SendOptions
from penstock.options import Accepts, options

Guarantee = Literal["transactional", "idempotent"]


@options
class KafkaSinkOptions(SendOptions):
    """The options of `WriteToKafka`."""

    bootstrap_servers: Annotated[str, Accepts(example="broker-1:9092")] = field(kw_only=False)
    """Addresses of brokers, ``host:port``, with commas between them."""
    format: Format
    """Function from an event to records, such as ``DebeziumFormat("shop")``. A record without a value is a
    tombstone."""
    topic: str = "{topic}"
    """Name of a topic; ``{topic}`` is the name that the format gives, ``{table}``, ``{schema}`` and ``{database}`` are
    the names of the source."""
    guarantee: Guarantee = "transactional"
    """With transactional, the records of a batch are one transaction, and consumers of committed records see each event
    once. With idempotent there are no transactions, and a batch may come again after a crash."""
    create_topics: bool = True
    """Whether to create topics that are missing, with partitions, replication_factor and topic_config."""
    partitions: int = -1
    """Number of partitions of a topic that is created; -1: the default of the broker."""
    replication_factor: int = -1
    """Number of replicas of a topic that is created; -1: the default of the broker."""
    topic_config: Annotated[Mapping[str, str] | None, Accepts(example="cleanup.policy=compact")] = None
    """Settings of a topic that is created, such as ``cleanup.policy``."""
    ledger_topic: str = "penstock-ledger"
    """Compacted topic with one partition, in which the sink notes what it has written. It is created if it is
    missing."""
    mark_complete: bool = False
    """Whether records in complete_topic say until which commit time the topics are complete. Needs the guarantee
    transactional."""
    complete_topic: str = "penstock-complete"
    """Compacted topic with one partition for these records. It is created if it is missing."""
    config: Annotated[Mapping[str, Any] | None, Accepts(example="sasl.password=${env:KAFKA_PASSWORD}")] = None
    """Settings of librdkafka for all clients, such as ``security.protocol`` and ``sasl.password``."""
