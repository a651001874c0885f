"""The configuration of the Pub/Sub sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.datasets import Dataset, names_of
from penstock.event.model import Source
from penstock.io.pubsub.options import PubSubSinkOptions
from penstock.io.staging.format import Format


@dataclass(frozen=True, slots=True)
class PubSubTarget:
    """See `WriteToPubSub`, whose arguments these are. `endpoint` is for an emulator or a regional endpoint."""

    project: str
    topic: str
    format: Format = field(repr=False)
    ordering: bool = PubSubSinkOptions.ordering
    create_topics: bool = PubSubSinkOptions.create_topics
    mark_complete: bool = PubSubSinkOptions.mark_complete
    complete_topic: str = PubSubSinkOptions.complete_topic
    endpoint: str | None = PubSubSinkOptions.endpoint

    @property
    def name(self) -> str:
        """``Pub/Sub topic projects/p/topics/t``."""
        return f"Pub/Sub topic projects/{self.project}/topics/{self.topic}"

    @property
    def complete_name(self) -> str:
        """The topic of marks in messages."""
        return f"Pub/Sub topic projects/{self.project}/topics/{self.complete_topic}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        return [Dataset("pubsub", f"topic:{self.project}:{name}") for name in names_of(self.topic, sources)]
