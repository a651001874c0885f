"""The configuration of the Pub/Sub sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.event.model import ChangeEvent
from penstock.extras import extra_packages
from penstock.io.pubsub.messages import messages_of
from penstock.io.staging.preview import Written
from penstock.io.staging.record_format import Format

if TYPE_CHECKING:
    from penstock.io.pubsub.sender import PubSubSender


@dataclass(frozen=True, slots=True)
class PubSubTarget:
    """See `WriteToPubSub`, whose arguments these are. `endpoint` is for an emulator or a regional endpoint."""

    project: str
    topic: str
    format: Format = field(repr=False)
    ordering: bool = True
    create_topics: bool = False
    endpoint: str | None = None

    @property
    def name(self) -> str:
        """``Pub/Sub topic projects/p/topics/t``."""
        return f"Pub/Sub topic projects/{self.project}/topics/{self.topic}"

    def check(self) -> None:
        """Look for the topic, if its name does not depend on the event."""
        sender = self.open(skip_refused=False)
        try:
            sender.check()
        finally:
            sender.close()

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the messages of an event; see `penstock.io.staging.preview`."""
        return [
            {
                "topic": message.topic,
                "data": message.data,
                "ordering_key": message.ordering_key,
                "attributes": message.attributes,
            }
            for message in messages_of(event, self.format, self.topic, ordering=self.ordering)
        ]

    def open(self, *, skip_refused: bool) -> PubSubSender:
        """Return a sender; see `penstock.io.staging.delivery.Target`."""
        with extra_packages("pubsub"):
            from penstock.io.pubsub.sender import PubSubSender

        return PubSubSender(self, skip_refused)
