"""Made once, by key and process."""

from __future__ import annotations

import os

import pytest

from penstock.io.change_streams.process_local import ProcessLocal


def test_one_object_is_created_per_key() -> None:
    things: ProcessLocal[object] = ProcessLocal()
    first = things.get("a", object)
    assert things.get("a", object) is first
    assert things.get("b", object) is not first


def test_a_failed_creation_is_retried() -> None:
    things: ProcessLocal[int] = ProcessLocal()
    with pytest.raises(ZeroDivisionError):
        things.get("a", lambda: 1 // 0)
    assert things.get("a", lambda: 2) == 2


def test_a_forked_child_creates_its_own_object(monkeypatch: pytest.MonkeyPatch) -> None:
    things: ProcessLocal[object] = ProcessLocal()
    parents = things.get("a", object)
    monkeypatch.setattr("penstock.io.change_streams.process_local.getpid", lambda: os.getpid() + 1)
    assert things.get("a", object) is not parents
    monkeypatch.undo()
    assert things.get("a", object) is parents
