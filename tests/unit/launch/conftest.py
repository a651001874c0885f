"""Signals have their default action at the start of each test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def hangup_is_not_ignored() -> Iterator[None]:
    """Under `nohup make test` this process ignores SIGHUP, and so would the code under test."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
