"""Publishes epochs to a target of tables, and parks the tables that it refuses. No Beam.

    a table goes on ──refused──► parked ──request──► resuming ──all published──► goes on
                                   ▲                     │
                                   └──────refused────────┘

A table that is parked gets nothing, also if it would accept the newest changes: its ledger has one entry, so an epoch
that comes before older ones would hide them. What comes is written to files. A table that is resuming gets its files,
the oldest first and some in each epoch, and then the changes that come. A table that is refilling gets a TRUNCATE in
their place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from penstock.attempt import current_attempt
from penstock.errors import PenstockError, ServiceError
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.delivery import LedgerConflictError
from penstock.io.staging.epochs import EpochDelivery, by_epoch
from penstock.io.staging.file_stager import file_numbers
from penstock.io.staging.parked_files import (
    FILE_BYTES,
    ParkedFile,
    ParkedFiles,
    TableEpochs,
    files_of,
    with_files,
)
from penstock.object_stores.store import in_parallel
from penstock.parked import ParkedTable

logger = logging.getLogger(__name__)

RESUMED_BYTES = FILE_BYTES
"""Changes of parked tables that one epoch publishes, about: the other tables wait for them."""
REASON_CHARACTERS = 500

_Refusals = list[PenstockError | None]
_Table = TypeVar("_Table")


class ParkedLimitError(ServiceError):
    """The changes of parked tables are larger than `max_parked_bytes` allows."""

    retryable = False


@runtime_checkable
class ParkingTarget(Protocol):
    """An `EpochTarget` that publishes each table alone."""

    def tables_of(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> list[TableEpochs]:
        """Return what an epoch gives to each table."""

    def publish_tables(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        """Publish tables; return for each the error that a repeat would not help against, or None.

        Raises:
            PenstockError: an error that may pass. Everything is to be tried again.
        """

    def raise_refused(self, tables: Sequence[TableEpochs], errors: Sequence[PenstockError | None]) -> None:
        """Raise the error of the first table that has one."""


class TableParking:
    """Publishes epochs of one sink, and parks tables.

    `max_bytes`: how large the files of parked tables may be together; None: no further table is parked, and the parked
    ones are resumed. `repeat` repeats work while the target does not answer.
    """

    def __init__(
        self,
        target: ParkingTarget,
        files: ParkedFiles,
        max_bytes: int | None,
        repeat: Callable[[Callable[[], _Refusals]], _Refusals],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._target, self._files, self._max_bytes = target, files, max_bytes
        self._repeat, self._now_us = repeat, now_us

    def publish(self, batches: Sequence[StagedBatch], parked: Sequence[ParkedTable]) -> list[ParkedTable]:
        """Publish the parked changes of tables that are resuming, and then batches; return the parked tables.

        Raises:
            ParkedLimitError: the files would be too large.
            PenstockError: an error that may pass; a table refuses and none is to be parked.
        """
        tables = self._after_requests(parked)
        for delivery, each in by_epoch(batches):
            tables = self._after_epoch(tables, self._target.tables_of(delivery, each))
        self._check_limit(tables.values())
        return list(tables.values())

    def _after_requests(self, parked: Sequence[ParkedTable]) -> dict[str, ParkedTable]:
        left, tables = RESUMED_BYTES, {}
        for each in parked:
            before = each.size
            if each.refilling:
                each = self._emptied(each)
            elif each.resuming or self._max_bytes is None:
                each = self._resumed(replace(each, resuming=True), left)
                # The limit is for all tables together, so what one has published is missing for the next.
                left -= before - each.size
                if not each.changes:
                    logger.warning("all parked changes of %s are written, and the table goes on", each.name)
            if each.changes:
                tables[each.name] = each
        return tables

    def _emptied(self, parked: ParkedTable) -> ParkedTable:
        """Empty a table in place of publishing its changes; return what is left of it."""
        truncation = self._files.truncation(parked, current_attempt())
        refusal = None if truncation is None else self._publish([truncation])[0]
        if refusal is not None:
            return _refused_again(parked, refusal)
        logger.warning(
            "%d parked changes are dropped%s, as asked, and %s goes on. `penstock tables JOB refill` now asks for all "
            "rows of %s; if it was ended, ask with `penstock snapshot`",
            parked.changes,
            "" if truncation is None else " with all older rows",
            parked.name,
            parked.source,
        )
        return with_files(parked, ())

    def _resumed(self, parked: ParkedTable, left: int) -> ParkedTable:
        """Publish the oldest files of a table, about `left` bytes; return what is left of it."""
        files = list(files_of(parked))
        while files and left > 0:
            if (refusal := self._publish_file(parked, files[0])) is not None:
                # A file of which some commits are made stays whole: the ledger of the table skips these.
                return _refused_again(with_files(parked, files), refusal)
            left -= files.pop(0).weight
        return with_files(parked, files)

    def _publish_file(self, parked: ParkedTable, file: ParkedFile) -> PenstockError | None:
        for part in self._files.read(parked, file, current_attempt()):
            (refusal,) = self._publish([part])
            if refusal is not None:
                return refusal
        return None

    def _publish(self, tables: Sequence[TableEpochs]) -> list[PenstockError | None]:
        errors = self._repeat(lambda: self._target.publish_tables(tables))
        # A copy of the checkpoint writes too: to park the table would hide that.
        conflicts = [each if isinstance(each, LedgerConflictError) else None for each in errors]
        self._target.raise_refused(tables, errors if self._max_bytes is None else conflicts)
        return errors

    def _after_epoch(
        self, parked: Mapping[str, ParkedTable], epoch: Sequence[TableEpochs]
    ) -> dict[str, ParkedTable]:
        tables = dict(parked)
        going = [each for each in epoch if each.name not in tables]
        for table, refusal in zip(going, self._publish(going), strict=True):
            if refusal is not None:
                tables[table.name] = self._newly_parked(table, refusal)
        # After the publish: the changes with which a table was just refused wait too.
        waiting = [each for each in epoch if each.name in tables]
        attempt = current_attempt()

        def add(table: TableEpochs) -> ParkedTable:
            (changes,) = table.epochs
            return self._files.with_changes(tables[table.name], changes, attempt, next(file_numbers))

        return tables | {each.name: each for each in in_parallel(add, waiting)}

    def _newly_parked(self, table: TableEpochs, refusal: PenstockError) -> ParkedTable:
        parked = ParkedTable(
            name=table.name,
            source=table.source.qualified_table,
            reason=_reason(refusal),
            since_us=self._now_us(),
            changes=0,
            size=0,
            resuming=False,
            files=b"",
        )
        logger.warning(
            "%s refuses the changes of %s and is parked: its changes wait in the checkpoint, and the other tables go "
            "on. Correct the cause, then run: penstock tables JOB resume %s. The reason: %s",
            parked.name,
            parked.source,
            parked.source,
            parked.reason,
        )
        return parked

    def _check_limit(self, tables: Iterable[ParkedTable]) -> None:
        # A table that is resuming becomes smaller, also if it is too large now.
        waiting = [each for each in tables if not each.resuming]
        size = sum(each.size for each in waiting)
        if self._max_bytes is None or size <= self._max_bytes:
            return
        largest = max(waiting, key=lambda each: each.size)
        raise ParkedLimitError(
            f"the changes of {len(waiting)} parked tables have {size:,} bytes (max_parked_bytes={self._max_bytes}). "
            f"The largest one is {largest.source}, which {largest.name} refuses: {largest.reason.rstrip('.')}. Correct "
            f"the cause and run `penstock tables JOB resume {largest.source}`, or drop its changes with `penstock "
            f"tables JOB skip {largest.source}`, and start the pipeline again. Or start it with a higher "
            "max_parked_bytes"
        )


def _refused_again(parked: ParkedTable, refusal: PenstockError) -> ParkedTable:
    again = replace(parked, resuming=False, refilling=False, reason=_reason(refusal))
    logger.warning("%s refuses its parked changes and stays parked: %s", parked.name, again.reason)
    return again


def _reason(error: PenstockError) -> str:
    text = error.redacted
    return text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]}…"


def refusals_of_tables(
    tables: Sequence[_Table], publish: Callable[[_Table], None], at_once: int
) -> list[PenstockError | None]:
    """Publish each table, `at_once` at the same time; return for each its permanent error, or None.

    Raises:
        PenstockError: an error that may pass.
    """
    ends = threading.Event()

    def attempt(table: _Table) -> PenstockError | None:
        try:
            if not ends.is_set():
                publish(table)
        except PenstockError as error:
            # An error that may pass ends the epoch at once: it is tried again as a whole, and the ledger skips
            # what is written.
            if not error.retryable:
                return error
            ends.set()
            raise
        return None

    return in_parallel(attempt, tables, at_once)
