"""`WriteToBigtable`: changes of one Bigtable table into another one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.event.model import ChangeEvent
from penstock.extras import extra_packages
from penstock.io.bigtable.source import EMULATOR_VARIABLE, Connection
from penstock.io.staging.preview import Written
from penstock.io.staging.retry import UNAVAILABLE_SECONDS
from penstock.io.staging.send_after_commit import SHARDS, SendAfterCommit

if TYPE_CHECKING:
    from penstock.io.bigtable.sender import BigtableSender

VERSION_FAMILY = "penstock"


@dataclass(frozen=True, slots=True)
class BigtableTarget:
    """See `WriteToBigtable`, whose arguments these are."""

    project: str
    instance: str
    table: str
    connection: Connection
    version_family: str = VERSION_FAMILY

    @property
    def table_path(self) -> str:
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"

    @property
    def name(self) -> str:
        """``Bigtable table projects/p/instances/i/tables/t``."""
        return f"Bigtable table {self.table_path}"

    def check(self) -> None:
        """Ask the service for one row key of the table."""
        with extra_packages("bigtable"):
            from penstock.io.bigtable.client import check_table

        check_table(self.table_path, self.connection, 30.0)

    def open(self, *, skip_refused: bool) -> BigtableSender:
        """Return a sender; see `penstock.io.staging.delivery.Target`."""
        with extra_packages("bigtable"):
            from penstock.io.bigtable.sender import BigtableSender

        return BigtableSender(self, skip_refused)

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the mutations of the event's row; see `penstock.io.staging.preview`."""
        with extra_packages("bigtable"):
            from penstock.io.bigtable.replica_mutations import is_of_the_sink, row_request

        if is_of_the_sink(event, self.version_family):
            return []
        row_request(self.table_path, "", self.version_family, [event])  # refuses what cannot be replicated
        mutations = [
            {
                "kind": cell.mod,
                "family": cell.family,
                "qualifier": cell.qualifier,
                "timestamp_micros": cell.start_us,
                "value": cell.value,
            }
            for cell in event.cells
        ]
        (row_key,) = (event.key or {}).values()
        return [{"table": self.table, "row_key": row_key, "mutations": mutations}]


class WriteToBigtable(SendAfterCommit):
    """Replicate the changes of a Bigtable table into another one, with their cell timestamps.

        events | WriteToBigtable(project="p", instance="i", table="copy")

    Bigtable has no transactions over rows, so each row carries the version of its newest change (commit timestamp and
    tiebreaker) in a cell of the family `version_family`. One conditional request compares the version and applies the
    change. So a change has its effect once: a repeat, also late by a driver that was paused, changes nothing.

    The table must exist, with the families of the source and the family `version_family`. The cell of a deleted row
    stays as its tombstone, until a garbage-collection policy of that family removes it. Its age must be at least the
    retention of the change stream.

    For replication in both directions, use the sink on both sides with one `version_family`: changes that the other
    sink wrote are left out, so no change comes back. There is no conflict resolution between two writers of one cell
    beyond that of cell timestamps.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that cannot be
    replicated: inputs of aggregates, and events that are not of Bigtable.

    Order: the changes of one row are applied in commit order. There is no order between rows.
    What repeats: requests, which change nothing.
    Watermark: each event holds the output watermark until its row is written.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.

    Args:
        project: the Google Cloud project of the target.
        instance: the Bigtable instance of the target.
        table: the target table. It exists already.
        app_profile: an app profile with single-cluster routing that allows transactional writes.
        version_family: the column family of versions.
        emulator_host: ``host:port`` of an emulator.
        shards: how many batches are written at the same time.
        roll_seconds: how long, in seconds of processing time, events are collected before they are sent; 0 sends with
            every epoch.
        staging: a folder or URL for staged batches; None: in the checkpoint.
        unavailable_seconds: how long, in seconds, a service that does not answer is asked again before the epoch fails.
    """

    def __init__(
        self,
        *,
        project: str,
        instance: str,
        table: str,
        app_profile: str = "default",
        version_family: str = VERSION_FAMILY,
        emulator_host: str | None = None,
        shards: int = SHARDS,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
        unavailable_seconds: float = UNAVAILABLE_SECONDS,
    ) -> None:
        connection = Connection.from_arguments(
            EMULATOR_VARIABLE,
            emulator_host=emulator_host,
            api_endpoint=None,
            credentials=None,
            app_profile=app_profile,
        )
        super().__init__(
            BigtableTarget(project, instance, table, connection, version_family),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            unavailable_seconds=unavailable_seconds,
        )
