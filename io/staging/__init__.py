"""Staged sinks for any file format and any store: collect, roll, stage, commit, publish.

    element -> CollectRecordsFn -> (bucket, block) -> RollFilesFn -> StagedFile
                                                                 = commit => PublishFilesFn -> PublishedFile

`WriteStagedFiles` is these steps as one transform. Sinks that users see, such as `penstock.io.files.WriteToJsonLines`,
are built on it. docs/files.md lists the effects of a crash at each point.

Sinks that send rows are built on `SendAfterCommit`, which stages batches of events in the same way:

    event -> CollectRecordsFn -> (shard, block) -> RollBatchesFn -> StagedBatch
                                                              = commit => SendBatchesFn -> DeliveredBatch, RefusedEvent

Names are loaded when they are first used, because most modules here need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.staging.batch import DeliveredBatch, StagedBatch
    from penstock.io.staging.collect import CollectRecordsFn
    from penstock.io.staging.connector import Connector
    from penstock.io.staging.dead_letter_limit import TooManyDeadLettersError
    from penstock.io.staging.delivery import (
        Delivery,
        EventBatch,
        LedgerConflictError,
        LedgerEntry,
        Refusal,
        RefusalError,
        RowRefusedError,
        Sender,
        Sent,
        Target,
        TargetUnavailableError,
        is_delivered,
    )
    from penstock.io.staging.errors import OutputError
    from penstock.io.staging.format import FileFormat
    from penstock.io.staging.options import SendOptions
    from penstock.io.staging.publish import PublishFilesFn
    from penstock.io.staging.refused import RefusedEvent
    from penstock.io.staging.roll import RollFilesFn
    from penstock.io.staging.rolling import RollingPolicy
    from penstock.io.staging.send_after_commit import SendAfterCommit
    from penstock.io.staging.staged_file import PublishedFile, StagedFile
    from penstock.io.staging.store import FileStore, store_of
    from penstock.io.staging.transform import WriteStagedFiles

__all__ = [
    "CollectRecordsFn",
    "Connector",
    "DeliveredBatch",
    "Delivery",
    "EventBatch",
    "FileFormat",
    "FileStore",
    "LedgerConflictError",
    "LedgerEntry",
    "OutputError",
    "PublishFilesFn",
    "PublishedFile",
    "Refusal",
    "RefusalError",
    "RefusedEvent",
    "RollFilesFn",
    "RollingPolicy",
    "RowRefusedError",
    "SendAfterCommit",
    "SendOptions",
    "Sender",
    "Sent",
    "StagedBatch",
    "StagedFile",
    "Target",
    "TargetUnavailableError",
    "TooManyDeadLettersError",
    "WriteStagedFiles",
    "is_delivered",
    "store_of",
]

# `coders` and `delivery_coders` also register the coders of their values.
_HOMES = {
    "CollectRecordsFn": "collect",
    "Connector": "connector",
    "DeliveredBatch": "delivery_coders",
    "Delivery": "delivery",
    "EventBatch": "delivery",
    "FileFormat": "format",
    "FileStore": "store",
    "LedgerConflictError": "delivery",
    "LedgerEntry": "delivery",
    "OutputError": "errors",
    "StagedFile": "coders",
    "PublishFilesFn": "publish",
    "PublishedFile": "coders",
    "Refusal": "delivery",
    "RefusalError": "delivery",
    "RefusedEvent": "delivery_coders",
    "RollFilesFn": "roll",
    "RollingPolicy": "rolling",
    "RowRefusedError": "delivery",
    "SendAfterCommit": "send_after_commit",
    "SendOptions": "options",
    "Sender": "delivery",
    "Sent": "delivery",
    "StagedBatch": "delivery_coders",
    "Target": "delivery",
    "TargetUnavailableError": "delivery",
    "TooManyDeadLettersError": "dead_letter_limit",
    "WriteStagedFiles": "transform",
    "is_delivered": "delivery",
    "store_of": "store",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
