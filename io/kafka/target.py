"""The configuration of the Kafka sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.datasets import Dataset, host_and_port, names_of
from penstock.event.model import Source
from penstock.io.kafka.options import Guarantee, KafkaSinkOptions
from penstock.io.staging.format import Format

_TRANSACTION_MS = 60_000
"""After this time the brokers abort an open transaction; readers of committed records wait until then."""


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """See `KafkaSinkOptions`. `config` may have a password, so it is not shown."""

    bootstrap_servers: str
    format: Format = field(repr=False)
    topic: str = KafkaSinkOptions.topic
    guarantee: Guarantee = KafkaSinkOptions.guarantee
    create_topics: bool = KafkaSinkOptions.create_topics
    partitions: int = KafkaSinkOptions.partitions
    replication_factor: int = KafkaSinkOptions.replication_factor
    topic_config: tuple[tuple[str, str], ...] = ()
    ledger_topic: str = KafkaSinkOptions.ledger_topic
    mark_complete: bool = KafkaSinkOptions.mark_complete
    complete_topic: str = KafkaSinkOptions.complete_topic
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """``Kafka at host:port``."""
        return f"Kafka at {self.bootstrap_servers}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        namespace = f"kafka://{host_and_port(self.bootstrap_servers, 9092)}"
        if "{topic}" not in self.topic:
            return [Dataset(namespace, name) for name in names_of(self.topic, sources)]
        topic_of = getattr(self.format, "topic_of", None)
        if topic_of is None:  # a function of a user, whose topics only its records show
            return []
        names = (names_of(self.topic.replace("{topic}", topic_of(each)), [each]) for each in sources)
        return [Dataset(namespace, name) for (name,) in names]

    @property
    def transactional(self) -> bool:
        return self.guarantee == "transactional"

    def client_settings(self) -> dict[str, Any]:
        """Return the settings that producers and consumers share."""
        return {**self.config, "bootstrap.servers": self.bootstrap_servers}

    def producer_settings(self, transactional_id: str | None) -> dict[str, Any]:
        """Return the settings of a producer: the user's, except what the guarantee needs."""
        settings: dict[str, Any] = {
            "linger.ms": 5,
            "compression.type": "zstd",
            # As Kafka's Java client, so that the records of a key share a partition with the records of other programs.
            "partitioner": "murmur2_random",
            # An outage must show soon: the sink sends again by itself, and says so.
            "message.timeout.ms": 50_000,
            **self.client_settings(),
            "enable.idempotence": True,
            "acks": "all",
        }
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": _TRANSACTION_MS}
        return settings
