"""Classes of `__main__` go to another process's `__main__` and modules are found there; what is there is left alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.runner.planning import program


def a_script(monkeypatch: pytest.MonkeyPatch, **names: Any) -> ModuleType:
    """From here on `__main__` is a script with these names, in a process that has adopted nothing."""
    script = ModuleType("__main__")
    vars(script).update(names)
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(program, "_adopted", {})
    return script


def defined(name: str, **attributes: Any) -> type:
    return type(name, (), {"__module__": "__main__", **attributes})


def test_a_worker_has_the_classes_of_the_script_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    a_script(monkeypatch, Order=defined("Order", pieces=1), ModuleType=ModuleType, total=7)
    sent = program.program_of_driver()
    worker = a_script(monkeypatch)
    program.adopt_program(sent)
    assert worker.Order.pieces == 1
    assert not hasattr(worker, "ModuleType")


def test_a_redefined_class_replaces_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    for pieces in (1, 2):
        a_script(monkeypatch, Order=defined("Order", pieces=pieces))
        sent.append(program.program_of_driver())
    worker = a_script(monkeypatch)
    for each in sent:
        program.adopt_program(each)
    assert worker.Order.pieces == 2


def test_classes_that_a_process_defines_itself_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = defined("Order")
    script = a_script(monkeypatch, Order=own)
    program.adopt_program(program.program_of_driver())
    assert script.Order is own


def test_a_class_that_cannot_be_pickled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    a_script(monkeypatch, Order=defined("Order"), Begun=defined("Begun", rest=(n for n in ())))
    assert list(program.program_of_driver().classes) == ["Order"]


def test_a_worker_searches_the_import_path_of_the_driver_after_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, gone = str(tmp_path), str(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", [here, gone])
    sent = program.program_of_driver()
    monkeypatch.setattr(sys, "path", ["own"])
    for _ in range(2):
        program.adopt_program(sent)
    assert sys.path == ["own", here]
