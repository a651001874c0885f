"""Staging on a real folder, crashed at every call of the file system."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.io.staging import local
from penstock.io.staging.local import LocalStore
from penstock.io.staging.names import STAGING
from tests.simulation.staging.epochs import CrashPoint, World, play


class CrashingOs:
    """Stands in for the module `os` in the code under test: its calls may kill the process."""

    calls = ("open", "fsync", "rename", "mkdir", "unlink", "rmdir", "listdir", "stat")

    def __init__(self, crash: CrashPoint) -> None:
        self.path = os.path
        self._crash = crash

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._crashing(name, real) if name in self.calls else real

    def _crashing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # fsync has no effect on what another process sees, and takes most of the time.
            return self._crash.request(lambda: None if name == "fsync" else real(*args, **kwargs))

        return call


class Folder:
    """The output folder, as programs other than the pipeline see it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def published(self) -> dict[str, bytes]:
        files = self.root.glob("t/*/*.jsonl")
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}

    def take(self, name: str) -> None:
        (self.root / name).unlink()

    def staged(self) -> list[str]:
        return [path.name for path in (self.root / STAGING).rglob("g*") if path.is_file()]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    crash = CrashPoint()
    monkeypatch.setattr(local, "os", CrashingOs(crash))

    def fresh() -> World:
        output = tmp_path / "run" / "out"
        shutil.rmtree(output.parent, ignore_errors=True)
        output.parent.mkdir()
        return World(LocalStore(str(output)), Folder(output), crash)

    return fresh


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_crash_at_any_file_system_call_loses_nothing_doubles_nothing_and_keeps_order(fresh, seed):
    calls = play(fresh(), seed, None, True)
    assert calls > 50
    for crash_at in range(calls):
        for before in (True, False):
            play(fresh(), seed, crash_at, before)


@pytest.mark.parametrize("seed", range(60))
def test_zombies_paused_publishers_and_late_clean_ups_change_nothing(fresh, seed):
    crash_at = random.Random(seed).randrange(150)
    play(fresh(), seed, crash_at, bool(seed % 2), twists=True)
