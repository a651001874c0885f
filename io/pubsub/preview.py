"""The messages that the sink publishes for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from penstock.event.model import ChangeEvent
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.pubsub.values import messages_of
from penstock.io.staging.preview import Written


def written_messages(event: ChangeEvent, target: PubSubTarget) -> list[Written]:
    """Return the messages of an event.

    Raises:
        ValueError: the format cannot express the event, or a message is beyond the limits of Pub/Sub.
    """
    return [
        {
            "topic": message.topic,
            "data": message.data,
            "ordering_key": message.ordering_key,
            "attributes": message.attributes,
        }
        for message in messages_of(event, target.format, target.topic, ordering=target.ordering)
    ]
