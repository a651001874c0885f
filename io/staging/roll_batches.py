"""The second step of a sink that sends rows: it rolls blocks of records into one staged batch per shard and epoch."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from itertools import chain

import apache_beam as beam

from penstock.attempt import Attempt
from penstock.errors import UsageError
from penstock.io.staging import file_stager
from penstock.io.staging.batch import INLINE_BYTES, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.delivery import Delivery
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.format import FileFormat
from penstock.io.staging.names import staged_name
from penstock.io.staging.roll import RollFilesFn
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.store import FileStore, store_of
from penstock.publish import current_attempt, current_staging


def staging_store(given: FileStore | None) -> FileStore:
    """Return the store where a sink stages batches: the given one, or the one that the runner offers.

    Raises:
        UsageError: there is neither.
    """
    if given is not None:
        return given
    offered = current_staging()
    if offered is None:
        raise UsageError(
            "this runner offers no place for staged files: run on PySparkRunner with --checkpoint_dir, or give the "
            "sink staging=, a folder or URL that all workers reach and only the user of the pipeline can read"
        )
    return store_of(offered)


def bucket_of(shard: int, shards: int) -> str:
    """Return the key of a shard in the state of the pipeline."""
    return f"{shard}-of-{shards}"


@beam.typehints.with_output_types(StagedBatch)
class RollBatchesFn(RollFilesFn):
    """(Shard, block of records) to `StagedBatch`: at most one for each shard and epoch.

    Order, repeats, watermark and state: see `RollFilesFn`, without order of event times.

    Args:
        staging: where batches are staged; None: where the runner offers.
        sink: the name of the sink.
        policy: when a batch rolls.
        format: turns records into the content of a batch.
        inline_bytes: a batch of at most this many bytes is part of its publication; None: `INLINE_BYTES`.
    """

    # One delivery for each writer and epoch is the reason why a ledger needs to store only the last epoch.
    _once_an_epoch = True

    def __init__(
        self,
        staging: FileStore | None,
        sink: str,
        policy: RollingPolicy,
        format: FileFormat,
        *,
        inline_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # The store is known when the first bundle starts, in a worker of the runner.
        super().__init__(staging, sink, policy, format, clock=clock)  # type: ignore[arg-type]
        self._staging = staging
        self._sink = sink
        self._format = format
        self._inline_bytes = INLINE_BYTES if inline_bytes is None else inline_bytes

    def start_bundle(self) -> None:
        self._stager = FileStager(staging_store(self._staging), self._sink, self._format)
        super().start_bundle()

    def _stage(self, bucket: str, blocks: Iterable[RecordBlock], records: int) -> StagedBatch:
        attempt, number = current_attempt(), next(file_stager.file_numbers)
        shard, shards = map(int, bucket.split("-of-"))
        delivery = Delivery(
            self._sink,
            attempt.job,
            shard,
            shards,
            attempt.generation,
            _epoch(attempt, number),
            attempt.drivers,
        )
        name = staged_name(self._sink, attempt, number)
        parts = iter(self._content(name, blocks))
        # How long the content is shows only while it is made: what was read so far is the head of a file, if need be.
        head = b""
        for part in parts:
            head += part
            if len(head) > self._inline_bytes:
                staged = self._stager.write(name, chain([head], parts))
                return StagedBatch(
                    delivery, records, staged.length, staged.crc32, self._stager.store.output, staged=name
                )
        return StagedBatch(delivery, records, len(head), zlib.crc32(head), content=head)

    def _content(self, name: str, blocks: Iterable[RecordBlock]) -> Iterable[bytes]:
        """Return the content of the batch; `name` is staged by no other try and for no other batch."""
        return self._format.content(blocks)


def _epoch(attempt: Attempt, number: int) -> int:
    # Other runners have no epochs. There a process is a job, and each of its batches an epoch.
    return attempt.epoch if attempt.generation else number + 1
