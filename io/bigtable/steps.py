"""Converts the records of a stream to the steps that are claimed. Pure."""

from __future__ import annotations

from penstock.errors import LineageError
from penstock.io.bigtable.frontier import Advanced, Closed, Finished, Step
from penstock.io.bigtable.keys import KeyRange, abbreviate
from penstock.io.bigtable.record import ChangeRecord, ChangeStreamMutation, DamagedMutation, Heartbeat
from penstock.io.change_streams.undecodable import UndecodableRecord


def to_step(partition: KeyRange, record: ChangeRecord, *, bounded: bool) -> Step | None:
    """Return the step that a record of the stream of `partition` means; None: a close without a continuation.

    A close with status OK and nothing else says that an end_time was reached, so it counts only in a `bounded` read.
    Continuation tokens count for every status.

    Raises:
        LineageError: a heartbeat of another partition.
    """
    if isinstance(record, ChangeStreamMutation | DamagedMutation):
        return advanced(partition, record)
    if isinstance(record, Heartbeat):
        # Its token would be stored for keys that it does not describe.
        if record.partition != partition:
            raise LineageError(
                f"a heartbeat of {abbreviate(record.partition)} in the stream of {abbreviate(partition)}"
            )
        return advanced(partition, record)
    if record.continuations:
        return Closed(partition, record.continuations)
    return Finished(partition) if record.code == 0 and bounded else None


def undecodable(partition: KeyRange, record: DamagedMutation) -> UndecodableRecord:
    """Return what is emitted for a change that cannot be decoded."""
    return UndecodableRecord(
        commit_timestamp=record.commit_timestamp,
        partition=abbreviate(partition),
        position=f"{record.token}/{record.tiebreaker}",
        reason=record.reason,
        data=record.data,
        format="google.bigtable.v2.ReadChangeStreamResponse.DataChange, each after its length in 4 bytes",
    )


def advanced(partition: KeyRange, record: ChangeStreamMutation | DamagedMutation | Heartbeat) -> Advanced:
    """Return the step that a record or heartbeat of the stream of `partition` means."""
    return Advanced(partition, record.token, record.estimated_low_watermark)
