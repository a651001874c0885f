"""The configuration of the Pub/Sub sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.io.staging.format import Format


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
