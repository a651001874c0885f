"""`complete_until` of the topics of a sink: the marks are in a separate topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.extras import extra_packages
from penstock.io.kafka.errors import CLIENT_LOG
from penstock.io.kafka.options import KafkaSinkOptions
from penstock.io.staging.complete_marks import complete_times, decode_mark


def complete_until(
    bootstrap_servers: str,
    *,
    topic: str = KafkaSinkOptions.complete_topic,
    config: Mapping[str, Any] | None = None,
) -> dict[str, datetime]:
    """Return by job until when it has completed its topics; empty if `topic` has no mark.

    The topics have every change of the job with a commit time below (not at) the time, except dead letters. A consumer
    of a partition has them when it reaches the end that the partition has after this call. Ask for the end with the
    isolation level read_uncommitted: an open transaction may hide committed records for a minute.

    Raises:
        confluent_kafka.KafkaException: the brokers refuse, or do not answer; or there is no such topic.
    """
    with extra_packages("kafka"):
        from confluent_kafka import Consumer

        from penstock.io.kafka.ledger import newest_values, reader_settings

    settings = {**(config or {}), "bootstrap.servers": bootstrap_servers}
    # The group stores no offsets, and librdkafka asks for its name.
    consumer = Consumer(reader_settings(settings, "penstock-complete-until"), logger=CLIENT_LOG)
    try:
        return complete_times(map(decode_mark, newest_values(consumer, topic).values()))
    finally:
        consumer.close()
