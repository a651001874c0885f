"""The configuration of the Pub/Sub sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.extras import extra_packages
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

    def open(self, *, skip_refused: bool) -> PubSubSender:
        """Return a sender; see `penstock.io.staging.delivery.Target`."""
        with extra_packages("pubsub"):
            from penstock.io.pubsub.sender import PubSubSender

        return PubSubSender(self, skip_refused)
