"""Passes the answers of snapshot threads to the engine, and makes the progress reports. For every source."""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.channels import Polled
from penstock.io.change_streams.incremental.engine import Chunk, FailedChunk, SnapshotEngine
from penstock.io.change_streams.incremental.notifications import (
    Notification,
    NotificationRecord,
    ScanStatus,
)
from penstock.io.change_streams.incremental.progress import INITIAL
from penstock.io.change_streams.incremental.worker import Resolved, SnapshotWorker
from penstock.io.change_streams.undecodable import UndecodableRecord

_LOGGER = logging.getLogger(__name__)


class WorkerAnswers:
    """Passes requests of an engine to its worker, and the worker's answers to the engine. One thread uses it."""

    def __init__(
        self,
        engine: SnapshotEngine,
        worker: SnapshotWorker,
        name: str,
        *,
        notifications: bool,
        dead_letters: bool,
    ) -> None:
        """`name`: of the stream, for reports. `notifications`, `dead_letters`: whether reports and failed chunks are
        emitted.
        """
        self._engine, self._worker, self._name = engine, worker, name
        self._emits_notifications, self._emits_dead_letters = notifications, dead_letters
        self._asked = ""
        self._failed: list[FailedChunk] = []
        self._waiting: deque[Any] = deque()
        self._new_reports: list[Notification] = []

    def _ask_for_tables(self) -> None:
        unresolved = self._engine.progress.unresolved
        # This runs with each batch, and the answer comes later, so a snapshot that was asked for is remembered.
        if unresolved is not None and unresolved.id != self._asked:
            self._asked = unresolved.id
            self._worker.ask(unresolved)

    def _ask(self) -> None:
        self._ask_for_tables()
        for request in self._engine.requests():
            self._worker.ask(request)

    def follow_tables(self, joined: Mapping[str, str], left: Sequence[str], id_: str) -> None:
        """Request the rows of tables that joined, and read no more rows of tables that left.

        `progress` has the request at once. `joined`: by table, the SQL condition of its rows, empty for all rows.
        `id_`: of the snapshot, for reports.
        """
        self._new_reports += self._engine.follow(joined, left, id_)

    def wait(self, seconds: float) -> None:
        """Return when a thread has answered, or after `seconds`."""
        with suppress(queue.Empty):
            self._waiting.append(self._worker.answers.get(timeout=seconds))

    def _take_answers(self) -> list[Notification]:
        reports, self._new_reports = self._new_reports, []
        self._failed = []
        while True:
            try:
                answer = self._waiting.popleft() if self._waiting else self._worker.answers.get_nowait()
            except queue.Empty:
                return reports
            if isinstance(answer, BaseException):
                raise answer
            # The position of the channel and the effect of its signals are one value: a checkpoint has both or neither.
            if isinstance(answer, Polled):
                self._engine.progress = self._engine.progress.with_channel(answer.channel, answer.position)
                for signal in answer.signals:
                    reports += self._engine.receive(signal)
                if answer.joined or answer.left:
                    for name in answer.joined:
                        _LOGGER.warning(
                            "%s joined %s: its rows are read now, between the changes", name, self._name
                        )
                    for name in answer.left:
                        _LOGGER.warning(
                            "%s left %s, or was dropped: it is not read any more", name, self._name
                        )
                    reports += self._engine.follow(answer.joined, answer.left, answer.channel)
            elif isinstance(answer, Resolved):
                self._asked = ""
                for table, (status, problem) in answer.problems.items():
                    _LOGGER.warning("no rows of %s are read: %s: %s", table, status, problem)
                reports += self._engine.resolve(*answer)
            else:
                reports += self._arrived(answer)

    def _arrived(self, answer: Chunk | FailedChunk) -> Sequence[Notification]:
        if isinstance(answer, FailedChunk) and answer.status is ScanStatus.UNKNOWN_SCHEMA:
            _LOGGER.warning("no more rows of %s are read: %s", answer.request.table, answer.problem)
        elif isinstance(answer, FailedChunk):
            # An initial snapshot promises all rows, so it fails. Others leave the table out and report it.
            current = self._engine.progress.current
            if current is not None and current.kind == INITIAL:
                raise SetupError(
                    f"{self._name}: the initial snapshot cannot read {answer.request.table}: {answer.problem}"
                )
            self._failed.append(answer)
        return self._engine.arrived(answer)

    def _failures(self, timestamp: int) -> list[Any]:
        if not self._emits_dead_letters:
            return []
        return [
            UndecodableRecord(
                commit_timestamp=timestamp,
                partition=failed.request.table,
                position=failed.request.cursor or "start",
                reason=failed.problem,
                data=b"",
                format="snapshot chunk",
            )
            for failed in self._failed
        ]

    def _reports(self, reports: Sequence[Notification], timestamp: int) -> list[Any]:
        return report_records(reports, self._name, timestamp, self._emits_notifications)


def report_records(
    reports: Sequence[Notification], name: str, timestamp: int, emits_notifications: bool
) -> list[NotificationRecord]:
    """Log reports about snapshots of the stream `name`, and return what is emitted for them."""
    for report in reports:
        _LOGGER.info(
            "snapshot %s: %s%s%s",
            report.snapshot,
            report.type,
            f" of {report.table}" if report.table else "",
            "" if report.rows is None else f", {report.rows} rows",
        )
    if not emits_notifications:
        return []
    return [NotificationRecord(timestamp, report.document(name, timestamp)) for report in reports]
