"""`WriteToKafka`: change events into topics of Kafka."""

from __future__ import annotations

from typing import Any, get_args

from penstock.errors import UsageError
from penstock.io.kafka.options import Guarantee, KafkaSinkOptions
from penstock.io.kafka.target import KafkaTarget
from penstock.io.staging.arguments import SOURCE_NAMES, check_choice, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit


def connector_of(target: KafkaTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.kafka.sender:KafkaSender",
        preview_name="penstock.io.kafka.preview:written_records",
        extra="kafka",
        marks_complete=target.mark_complete,
    )


class WriteToKafka(KafkaSinkOptions, SendAfterCommit):
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

    Raises:
        UsageError: an argument is wrong (at construction).
    """

    def __post_init__(self) -> None:
        check_choice("guarantee", self.guarantee, get_args(Guarantee))
        check_placeholders("topic", self.topic, ("topic", *SOURCE_NAMES))
        if self.mark_complete and self.guarantee != "transactional":
            raise UsageError(
                "mark_complete needs guarantee=transactional: without a transaction, a driver that was paused could "
                "write an older time behind a newer one. Ask the checkpoint instead (penstock wait)."
            )
        target = KafkaTarget(
            self.bootstrap_servers,
            self.format,
            self.topic,
            self.guarantee,
            self.create_topics,
            self.partitions,
            self.replication_factor,
            tuple((self.topic_config or {}).items()),
            self.ledger_topic,
            self.mark_complete,
            self.complete_topic,
            dict(self.config or {}),
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self, format=self.format)

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "topic": self.topic, "guarantee": self.guarantee}
