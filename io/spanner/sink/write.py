"""`WriteToSpanner`: change events into tables of Spanner that have the columns of the source's tables."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.io.spanner.sink.options import SpannerSinkOptions
from penstock.io.spanner.sink.target import SpannerTarget
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit


def connector_of(target: SpannerTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.spanner.sink.sender:SpannerSender",
        preview_name="penstock.io.spanner.sink.preview:mutations_of_event",
        extra="spanner",
        marks_complete=target.mark_complete,
    )


class WriteToSpanner(SpannerSinkOptions, SendAfterCommit):
    """Maintain tables of Spanner as a replica of the source's tables. Exactly once.

        events | WriteToSpanner(project="p", instance="i", database="copy")

    The tables must exist, with the names, keys and columns of the source. One transaction reads the versions of the
    rows, writes the rows whose change is newer, and stores both with the entry of the ledger. So a batch that is sent
    again changes nothing, also late by a driver that was paused. Versions and tombstones are in the table
    ``PenstockVersions``, the ledger in ``PenstockLedger``; both are created by the check before the start, or with the
    first batch.

    The transactions have the tag `transaction_tag`. For replication in both directions, pass it to
    ``ReadFromSpannerChangeStream(exclude_transaction_tags=…)``: then no change comes back.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that Spanner
    refuses: values that do not fit, missing parents, events without a key, TRUNCATE, events of Bigtable.

    Order: the changes of one primary key are applied in their order. There is no order between shards, so rows of an
    interleaved table may come before their parents: pass ``shards=1`` then.
    What repeats: nothing on `PySparkRunner`; on other runners batches, which change nothing.
    Watermark: each event holds the output watermark until its transaction is committed.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Raises:
        UsageError: an argument is wrong (at construction).
    """

    def __post_init__(self) -> None:
        if not isinstance(self.tombstone_days, int) or self.tombstone_days < 1:
            raise UsageError(f"tombstone_days must be 1 or more, got {self.tombstone_days!r}.")
        target = SpannerTarget(
            self.project,
            self.instance,
            self.database,
            self.transaction_tag,
            self.tombstone_days,
            self.mark_complete,
            self.emulator_host,
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self)
