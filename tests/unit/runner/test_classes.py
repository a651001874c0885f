"""Classes of `__main__` go to another process's `__main__`, and leave what is there alone."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from penstock.runner import classes


def a_script(monkeypatch: pytest.MonkeyPatch, **names: Any) -> ModuleType:
    """From here on `__main__` is a script with these names, in a process that has adopted nothing."""
    script = ModuleType("__main__")
    vars(script).update(names)
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(classes, "_adopted", {})
    return script


def defined(name: str, **attributes: Any) -> type:
    return type(name, (), {"__module__": "__main__", **attributes})


def test_a_worker_has_the_classes_of_the_script_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    a_script(monkeypatch, Order=defined("Order", pieces=1), ModuleType=ModuleType, total=7)
    sent = classes.of_main()
    worker = a_script(monkeypatch)
    classes.adopt(sent)
    assert worker.Order.pieces == 1
    assert not hasattr(worker, "ModuleType")


def test_a_class_that_is_defined_anew_takes_the_place_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    for pieces in (1, 2):
        a_script(monkeypatch, Order=defined("Order", pieces=pieces))
        sent.append(classes.of_main())
    worker = a_script(monkeypatch)
    for each in sent:
        classes.adopt(each)
    assert worker.Order.pieces == 2


def test_what_a_process_has_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = defined("Order")
    script = a_script(monkeypatch, Order=own)
    classes.adopt(classes.of_main())
    assert script.Order is own


def test_a_class_that_cannot_be_pickled_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    a_script(monkeypatch, Order=defined("Order"), Begun=defined("Begun", rest=(n for n in ())))
    assert list(classes.of_main()) == ["Order"]
