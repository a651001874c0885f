"""Requests that have a job read rows again: when they are done, and why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.row_requests import NotReadError, RowRequests, signal_folder
from penstock.errors import UsageError
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot, PauseSnapshot, parse_signal_line


@dataclass
class Job:
    """A job that takes a request after two looks, and has read its rows after four."""

    folder: Path
    looks: int = 0
    takes: int = 2
    reads: int = 4
    paused: bool = False
    ended: Any = None
    signals: list[Any] = field(default_factory=list)

    def last(self) -> Any:
        return SimpleNamespace(
            generation=1, committed_us=4e15, state=SimpleNamespace(done=False, draining=False)
        )

    def started(self, generation: int) -> None: ...

    def progress(self, record: Any, pipeline: Any) -> Any:
        self.looks += 1
        progress = SnapshotProgress()
        if self.looks >= self.takes:
            files = sorted(self.folder.iterdir())
            self.signals = [parse_signal_line(each.read_text(), "") for each in files]
            progress = progress.with_channel("folder", [each.name for each in files])
            if self.looks < self.reads:
                for signal in [*self.signals, *([PauseSnapshot("p")] if self.paused else [])]:
                    progress, _ = progress.receive(signal)
        none = SimpleNamespace(restriction=None)
        return SimpleNamespace(residuals=[none, SimpleNamespace(restriction=Position(progress))])


@dataclass
class Position:
    progress: SnapshotProgress

    @property
    def snapshots(self) -> tuple[SnapshotProgress, ...]:
        return (self.progress,)


def ask(job: Job, keys: list[str]) -> list[tuple[str, int]]:
    job_ended = lambda generation: job.ended  # noqa: E731
    waits: list[tuple[str, int]] = []
    time = iter(range(100))
    requests = RowRequests(
        SimpleNamespace(last=job.last, started=job.started, progress=job.progress, ended=job_ended),
        None,
        job.folder,
        8,
        lambda table, rows: waits.append((table, rows)),
        clock=lambda: float(next(time)),
        pause=lambda seconds: None,
    )
    requests.check()
    requests("sales.a+b", keys)
    return waits


def test_it_returns_when_a_checkpoint_has_the_rows_and_leaves_no_request(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert ask(job, ['["1"]', '["2"]']) == [("sales.a+b", 2)] * 3
    (signal,) = job.signals
    assert signal == ExecuteSnapshot(signal.id, (r"sales\.a\+b",), keys=('["1"]', '["2"]'))
    assert list(tmp_path.iterdir()) == []


def test_no_rows_are_no_request(tmp_path: Path) -> None:
    assert ask(Job(tmp_path), []) == []


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"takes": 99}, "Was it started with this signal_folder"),
        ({"reads": 99}, "1 snapshots are not finished"),
        ({"reads": 99, "paused": True}, "penstock snapshot --action resume"),
    ],
)
def test_a_request_that_takes_too_long_says_what_it_waits_for_and_stays(
    tmp_path: Path, state: dict[str, Any], text: str
) -> None:
    with pytest.raises(NotReadError, match=text):
        ask(Job(tmp_path, **state), ['["1"]'])
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["data"]["keys"] == [["1"]]


def test_a_job_that_does_not_run_is_refused_and_gets_no_request(tmp_path: Path) -> None:
    job = Job(tmp_path, ended=SimpleNamespace(state="failed", reason="the disk is full"))
    with pytest.raises(UsageError, match="does not run .failed: the disk is full"):
        ask(job, ['["1"]'])
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_ends_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path, reads=99)
    look = job.progress

    def ends(record: Any, pipeline: Any) -> Any:
        job.ended = SimpleNamespace(state="stopped", reason="")
        return look(record, pipeline)

    job.progress = ends  # type: ignore[method-assign]
    with pytest.raises(NotReadError, match="does not run any more"):
        ask(job, ['["1"]'])


def test_a_job_without_a_signal_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no signal_folder"):
        signal_folder("job.yaml", {})
    with pytest.raises(UsageError, match="there is no signal_folder"):
        signal_folder("job.yaml", {"signal_folder": str(tmp_path / "none")})
    assert signal_folder("job.yaml", {"signal_folder": str(tmp_path)}) == tmp_path
