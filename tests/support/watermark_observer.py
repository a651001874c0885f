"""Collects the watermark of each checkpoint of a running pipeline."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.remote import RemoteJob
from tests.support.oracle.watermarks import Report
from tests.support.waiting import join


class WatermarkObserver:
    """A thread that looks at the newest record of a checkpoint folder ten times a second.

    `reports` has one report for each record that it saw, without those that have no watermark.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.reports: list[Report] = []
        self._checkpoint = checkpoint
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._observe, daemon=True)

    def __enter__(self) -> WatermarkObserver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        join(self._thread)

    def _observe(self) -> None:
        while not self._ended.wait(0.1):
            try:
                record = RemoteJob.open(str(self._checkpoint)).last()
            except (
                CheckpointError,
                OSError,
            ):  # not created yet, or the record was deleted since it was listed
                continue
            progress = record and RemoteJob.open(str(self._checkpoint)).progress(record)
            if progress and progress.committed_us and progress.watermark_us:
                report = Report(progress.committed_us * 1000, progress.watermark_us * 1000)
                # Beam's lowest timestamp is negative. It means that no source has reported a watermark.
                if report.watermark > 0 and self.reports[-1:] != [report]:
                    self.reports.append(report)
