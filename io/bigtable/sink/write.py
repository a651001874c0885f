"""`WriteToBigtable`: changes of one Bigtable table into another one."""

from __future__ import annotations

from penstock.io.bigtable.sink.options import BigtableSinkOptions
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.source import EMULATOR_VARIABLE, Connection
from penstock.io.staging.connector import Connector
from penstock.io.staging.send_after_commit import SendAfterCommit


def connector_of(target: BigtableTarget) -> Connector:
    """Return what opens and checks the target."""
    return Connector(
        target,
        sender_name="penstock.io.bigtable.sink.sender:BigtableSender",
        preview_name="penstock.io.bigtable.sink.preview:mutations_of_event",
        extra="bigtable",
        marks_complete=target.mark_complete,
    )


class WriteToBigtable(BigtableSinkOptions, SendAfterCommit):
    """Replicate the changes of a Bigtable table into another one, with their cell timestamps.

        events | WriteToBigtable(project="p", instance="i", table="copy")

    Bigtable has no transactions over rows, so each row carries the version of its newest change (commit timestamp and
    tiebreaker) in a cell of the family `version_family`. One conditional request compares the version and applies the
    change. So a change has its effect once: a repeat, also late by a driver that was paused, changes nothing.

    The table must exist, with the families of the source and the family `version_family`. The cell of a deleted row
    stays as its tombstone, until a garbage-collection policy of that family removes it. Its age must be at least the
    retention of the change stream.

    With `mark_complete` rows whose keys begin with ``_penstock_complete/`` say until when the table is complete.

    For replication in both directions, use the sink on both sides with one `version_family`: changes that the other
    sink wrote are left out, so no change comes back. Between two writers of one cell only the cell timestamp
    decides; there is no other conflict resolution.

    Emits a `DeliveredBatch` for each batch. `with_exception_handling` adds an output of the events that cannot be
    replicated: inputs of aggregates, and events that are not of Bigtable.

    Order: the changes of one row are applied in commit order. There is no order between rows.
    What repeats: requests, which change nothing.
    Watermark: each event holds the output watermark until its row is written.
    State: for each shard the events since the last commit, or of the last `roll_seconds`.
    """

    def __post_init__(self) -> None:
        connection = Connection.from_arguments(
            EMULATOR_VARIABLE,
            emulator_host=self.emulator_host,
            api_endpoint=None,
            credentials=None,
            app_profile=self.app_profile,
        )
        target = BigtableTarget(
            self.project, self.instance, self.table, connection, self.version_family, self.mark_complete
        )
        SendAfterCommit.__init__(self, connector_of(target), options=self)
