"""The options of the Pub/Sub sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Annotated

from penstock.io.staging.format import Format
from penstock.io.staging.options import SendOptions
from penstock.options import Accepts, options


@options
class PubSubSinkOptions(SendOptions):
    """The options of `WriteToPubSub`."""

    project: Annotated[str, Accepts(example="my-project")]
    """Google Cloud project of the topics."""
    topic: Annotated[str, Accepts(example="changes-{table}")]
    """Id of the topic; ``{table}``, ``{schema}`` and ``{database}`` are the names of the source."""
    format: Format
    """Function from an event to records, such as ``DebeziumFormat("shop")``. Headers become attributes. A record
    without a value (a tombstone) is an empty message with the attribute ``penstock_tombstone``."""
    ordering: bool = True
    """Whether the messages of a row have an ordering key."""
    create_topics: bool = False
    """Whether to create topics that are missing."""
    mark_complete: bool = False
    """Whether messages of complete_topic say until which commit time the topics are complete."""
    complete_topic: Annotated[str, Accepts(example="penstock-complete")] = "penstock-complete"
    """Id of the topic for these messages, in the same project."""
    endpoint: Annotated[str | None, Accepts(example="europe-west1-pubsub.googleapis.com:443")] = None
    """``host:port`` of a regional endpoint."""
