"""`WriteToSpanner`: change events into tables of Spanner that have the columns of the source's tables."""

from __future__ import annotations

import os

from penstock.errors import UsageError
from penstock.io.spanner.sink.target import TRANSACTION_TAG, SpannerTarget
from penstock.io.staging.connector import Connector
from penstock.io.staging.retry import UNAVAILABLE_SECONDS
from penstock.io.staging.send_after_commit import SHARDS, SendAfterCommit


def connector_of(target: SpannerTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.spanner.sink.sender:SpannerSender",
        preview_name="penstock.io.spanner.sink.preview:mutations_of_event",
        extra="spanner",
    )


class WriteToSpanner(SendAfterCommit):
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

    Args:
        project: the Google Cloud project of the target.
        instance: the Spanner instance of the target.
        database: the target database, of the dialect GoogleSQL. It has the tables already.
        transaction_tag: the tag of the sink's transactions.
        tombstone_days: how long the versions of deleted rows stay. At least the retention of the change stream and the
            age at which dead letters are replayed.
        emulator_host: ``host:port`` of an emulator.
        shards: how many transactions run at the same time.
        roll_seconds: how long, in seconds of processing time, events are collected before they are sent; 0 sends with
            every epoch.
        staging: a folder or URL for staged batches; None: in the checkpoint.
        unavailable_seconds: how long, in seconds, a service that does not answer is asked again before the epoch fails.

    Raises:
        UsageError: an argument is wrong (at construction).
    """

    def __init__(
        self,
        *,
        project: str,
        instance: str,
        database: str,
        transaction_tag: str = TRANSACTION_TAG,
        tombstone_days: int = 7,
        emulator_host: str | None = None,
        shards: int = SHARDS,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
    ) -> None:
        if not isinstance(tombstone_days, int) or tombstone_days < 1:
            raise UsageError(f"tombstone_days must be 1 or more, got {tombstone_days!r}.")
        super().__init__(
            connector_of(
                SpannerTarget(project, instance, database, transaction_tag, tombstone_days, emulator_host)
            ),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            unavailable_seconds=unavailable_seconds,
        )
