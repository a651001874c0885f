"""`WriteToPubSub`: change events as messages of Pub/Sub."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError
from penstock.io.pubsub.options import PubSubSinkOptions
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.staging.arguments import SOURCE_NAMES, check_placeholders
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit


def connector_of(target: PubSubTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.pubsub.sender:PubSubSender",
        preview_name="penstock.io.pubsub.preview:written_messages",
        extra="pubsub",
        marks_complete=target.mark_complete,
    )


class WriteToPubSub(PubSubSinkOptions, SendAfterCommit):
    """Publish change events to Pub/Sub, in a format such as Debezium's. At least once, with ids that tell repeats.

        events | WriteToPubSub(project="my-project", topic="orders", format=DebeziumFormat("shop"))

    Pub/Sub has no transactions, so a batch may be published again after a crash, also late by a driver that was
    paused. Each message has the attribute ``penstock_id``, which is the same in every repeat: consumers drop what
    they have seen. ``penstock_version`` sorts as text in the order of the source: a replica ignores a message that is
    not newer than its row.

    With `ordering` the messages of a row have one ordering key, a hash of its table and key. A subscription with
    message ordering gets them in the order in which they were published. Messages of one ordering key must be
    published in one region: set `endpoint` if workers run in several.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that the format
    cannot express or that are beyond the limits of Pub/Sub (10 MB, attributes of 1,024 bytes).

    Order: messages of a row are published in commit order. After a crash, messages of the last batch come again from
    its start.
    What repeats: the last batches before a crash, with equal ids.
    Watermark: each event holds the output watermark until it is published.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Raises:
        UsageError: an argument is wrong (at construction).
    """

    def __post_init__(self) -> None:
        check_placeholders("topic", self.topic, SOURCE_NAMES)
        if self.mark_complete and self.complete_topic == self.topic:
            raise UsageError(
                f"complete_topic must be another topic than topic, got {self.topic!r} for both: a message of it is no "
                "change."
            )
        target = PubSubTarget(
            self.project,
            self.topic,
            self.format,
            self.ordering,
            self.create_topics,
            self.mark_complete,
            self.complete_topic,
            self.endpoint,
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self, format=self.format)

    def display_data(self) -> dict[str, Any]:
        return {**super().display_data(), "topic": self.topic, "ordering": self.ordering}
