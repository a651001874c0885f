"""What is said about executors that have another Python or other packages than the driver."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

import pytest

from penstock.runner.spark.errors import WorkerSetupError
from penstock.runner.spark.executor_check import Installation, check_executors, differences, installation

DRIVER = Installation("driver", "3.11", {"penstock": "1.0", "apache-beam": "2.77.0"})


def test_equal_installations_are_no_problem() -> None:
    assert differences(DRIVER, [replace(DRIVER, host="a"), replace(DRIVER, host="b")]) == []


def test_each_host_is_named_once_with_everything_that_differs() -> None:
    other = Installation("a", "3.12", {"penstock": "1.1", "apache-beam": "2.77.0"}, ("obstore",))
    assert differences(DRIVER, [other, other, replace(DRIVER, host="b")]) == [
        "the executor on a has Python 3.12, not 3.11, penstock 1.1, not 1.0, no module obstore"
    ]


def test_a_version_that_one_side_does_not_know_proves_nothing() -> None:
    other = Installation("a", "3.11", {"penstock": "", "apache-beam": "2.77.0"})
    assert differences(DRIVER, [other]) == []
    assert differences(replace(DRIVER, versions=other.versions), [DRIVER]) == []


def test_missing_modules_are_found_without_an_import() -> None:
    assert installation(["json", "no_such_module", "no_such.module"]).missing == (
        "no_such_module",
        "no_such.module",
    )


def test_a_local_master_is_not_asked() -> None:
    class Context:
        master = "local[2,4]"

    check_executors(Context())


class Cluster:
    """A context whose tasks run here, with other packages than the driver has."""

    master = "spark://host:7077"
    defaultParallelism = 2  # noqa: N815 - PySpark's name

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def setJobGroup(self, *_: object, **named: object) -> None: ...

    def parallelize(self, numbers: range, slices: int) -> Cluster:
        return self

    def mapPartitions(self, run: Any) -> Cluster:
        self._run = run
        return self

    def collect(self) -> list[Installation]:
        with self._monkeypatch.context() as patched:
            patched.setattr(importlib.metadata, "version", lambda name: "0.0")
            return [each for _ in range(2) for each in self._run(iter([0]))]


def test_a_cluster_with_other_packages_is_refused_with_the_way_to_ship_them(monkeypatch) -> None:
    with pytest.raises(
        WorkerSetupError, match=r"has penstock 0\.0, not .*`penstock package` packs this"
    ) as refused:
        check_executors(Cluster(monkeypatch))
    assert not refused.value.retryable
