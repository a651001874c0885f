"""Drivers on one checkpoint folder, with a separate clock and separate nonces."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.runner.protocol import Coordinator
from penstock.runner.store import Checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def driver(folder: str) -> Callable[..., Coordinator]:
    """Make a driver's coordinator: `driver("old")`, keyword arguments as for `Coordinator`."""
    nonces = (f"nonce{n}" for n in itertools.count())

    def make(writer: str, ledger: Checkpoint | None = None, **options: object) -> Coordinator:
        options = {
            "clock": lambda: 1_000_000,
            "nonces": lambda: next(nonces),
            "pause": lambda s: None,
        } | options
        return Coordinator(ledger or Checkpoint.open(folder), writer=writer, **options)

    return make
