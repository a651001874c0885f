"""Warnings from workers: collected once each there, shown once here."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest

from penstock.runner.tasks.worker_warnings import WorkerWarning, collected_warnings, show_warnings


class OfThisModuleWarning(UserWarning):
    """A category that the driver can import."""


def _given(category: type[Warning], text: str, times: int = 1) -> list[WorkerWarning]:
    into: list[WorkerWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with collected_warnings(into):
            for _ in range(times):
                warnings.warn(text, category, stacklevel=1)
    return into


def test_a_warning_given_many_times_travels_once_and_is_shown_with_its_category_and_place():
    given = pickle.loads(pickle.dumps(_given(OfThisModuleWarning, "beware of the bytes", times=3)))
    with pytest.warns(OfThisModuleWarning, match="beware of the bytes") as shown:
        show_warnings([*given, *given])
    assert [(Path(w.filename).name, w.lineno) for w in shown] == [("test_worker_warnings.py", given[0].line)]


def test_a_warning_that_this_process_has_shown_is_not_repeated_by_default():
    given = _given(UserWarning, "said every epoch")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        show_warnings(given)
        show_warnings(given)
    assert [str(w.message) for w in shown] == ["said every epoch"]


def test_a_category_that_only_the_worker_knows_arrives_as_a_user_warning():
    class Local(UserWarning):
        pass

    (given,) = _given(Local, "from inside a function")
    with pytest.warns(UserWarning, match="from inside a function"):
        show_warnings([given])


def test_warnings_that_the_worker_ignores_do_not_travel():
    into: list[WorkerWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with collected_warnings(into):
            warnings.warn("not worth it", stacklevel=1)
    assert into == []


def test_the_previous_warning_hook_is_restored_after_an_error():
    before = warnings.showwarning
    with pytest.raises(RuntimeError, match="in the middle"), collected_warnings([]):
        raise RuntimeError("in the middle")
    assert warnings.showwarning is before
