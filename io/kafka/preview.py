"""The records that the sink writes for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from penstock.event.model import ChangeEvent
from penstock.io.kafka.target import KafkaTarget
from penstock.io.kafka.values import records_of_event
from penstock.io.staging.preview import Written
from penstock.timestamps import format_timestamp


def written_records(event: ChangeEvent, target: KafkaTarget) -> list[Written]:
    """Return the records of an event.

    Raises:
        ValueError: the format cannot express the event, or a topic has no possible name.
    """
    return [
        {
            "topic": record.topic,
            "key": record.key,
            "value": record.value,
            "headers": dict(record.headers),
            "timestamp": format_timestamp(record.timestamp_ms * 1_000_000),
        }
        for record in records_of_event(0, event, target.format, target.topic)
    ]
