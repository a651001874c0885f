"""What is exported when: at a commit, and when a service has answered. No service holds up a commit."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pytest

from penstock.launch.commit_exporter import CommitExporter
from penstock.launch.service_watch import ServiceWatch
from penstock.measurement import Measurement
from tests.support.waiting import wait_until

ANSWER = Measurement("penstock_slot_retained_bytes", 7, "Kept.")


@dataclass
class Progress:
    epochs: int
    committed_us: int | None = 1_000_000
    watermark_us: int | None = 1_000_000
    residuals: tuple[()] = ()


class Exported:
    """The exporter, and the values of each export by name."""

    def __init__(self, services: ServiceWatch | None = None) -> None:
        self.values: list[dict[str, float]] = []
        self._exporter = CommitExporter(self._take, lambda: 5.0, services)

    def _take(self, measurements: Any) -> None:
        self.values.append({each.name: each.value for each in measurements})

    def look(self, epochs: int) -> int:
        """Export what is new after this number of epochs; return how often anything was exported."""
        self._exporter.export(Progress(epochs), lambda: self)
        return len(self.values)

    def query(self) -> dict[str, list[Any]]:
        return {"counters": []}


def test_each_commit_is_exported_once_with_the_start_of_the_driver() -> None:
    exported = Exported()
    assert [exported.look(1), exported.look(1), exported.look(2)] == [1, 1, 2]
    assert exported.values[-1]["penstock_epochs"] == 2
    assert exported.values[-1]["penstock_start_timestamp_seconds"] == 5.0


def test_an_answer_of_a_service_is_exported_although_nothing_is_committed() -> None:
    services = ServiceWatch()
    exported = Exported(services)
    exported.look(1)
    services.answers = [ANSWER]
    assert [exported.look(1), exported.look(1)] == [2, 2]
    assert exported.values[-1]["penstock_slot_retained_bytes"] == 7
    assert exported.values[-1]["penstock_epochs"] == 1
    exported.look(2)
    assert exported.values[-1]["penstock_slot_retained_bytes"] == 7


def test_a_service_that_does_not_answer_holds_up_no_commit() -> None:
    asked, answer = threading.Event(), threading.Event()

    def ask() -> list[Measurement]:
        asked.set()
        answer.wait()
        return [ANSWER]

    with ServiceWatch([ask]) as services:
        assert asked.wait(60)
        exported = Exported(services)
        assert exported.look(1) == 1
        assert "penstock_slot_retained_bytes" not in exported.values[-1]
        answer.set()
        wait_until(lambda: exported.look(1) > 1)
    assert exported.values[-1]["penstock_slot_retained_bytes"] == 7


def test_a_question_that_fails_has_no_value_until_it_is_answered_again() -> None:
    calls: list[int] = []
    go_on = threading.Event()

    def ask() -> list[Measurement]:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the service is away")
        if len(calls) == 3:
            go_on.wait()
        return [Measurement("penstock_slot_lost", len(calls), "")]

    with ServiceWatch([ask, lambda: [ANSWER]], ask_seconds=0.001) as services:
        wait_until(lambda: len(calls) == 3)
        assert services.answers == [ANSWER]
        go_on.set()
        wait_until(lambda: len(services.answers) == 2)


def test_each_set_of_answers_is_noted_as_values_of_json() -> None:
    noted: list[Any] = []
    services = ServiceWatch([lambda: [ANSWER]], ask_seconds=0.001)
    services.note = lambda at, values: noted.append(json.loads(json.dumps([at, *values])))
    with services:
        wait_until(lambda: len(noted) > 1)
    assert noted[0][0] == pytest.approx(time.time(), abs=3600)
    assert (noted[0][1]["name"], noted[0][1]["value"]) == (ANSWER.name, ANSWER.value)


def test_every_transform_with_measurements_is_asked() -> None:
    class Source(beam.PTransform):
        def expand(self, begin: Any) -> Any:
            return begin | beam.Create([1])

        def measure(self) -> list[Measurement]:
            return [ANSWER]

    pipeline = beam.Pipeline()
    _ = pipeline | Source()
    services = ServiceWatch()
    services.ask_of(pipeline)
    with services:
        wait_until(lambda: services.answers == [ANSWER])
