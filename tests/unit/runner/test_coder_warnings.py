"""The warning that Beam's coders log is shown once, not once per stage and process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder

from penstock.runner.tasks import coder_warnings
from tests.simulation.batch import run_batch


@dataclass(frozen=True)
class Key:
    name: str


@pytest.fixture(autouse=True)
def _not_forwarded() -> Iterator[None]:
    """No filter, also if another test ran tasks here; and warnings are on, which an import of the demo turns off."""
    logger = logging.getLogger("apache_beam.coders.coder_impl")
    filters, level = list(logger.filters), logger.level
    logger.filters.clear()
    logger.setLevel(logging.WARNING)
    yield
    logger.filters[:] = filters
    logger.setLevel(level)


def test_a_pipeline_shows_the_warning_once_although_several_coders_log_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build(p: beam.Pipeline) -> None:
        pairs = p | beam.Create([("a", 1), ("b", 2)]) | beam.MapTuple(lambda name, n: (Key(name), n))
        for label in ("First", "Second"):
            _ = pairs | label >> beam.GroupByKey() | f"Print {label}" >> beam.Map(str)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        run_batch(build)
    fallback = [str(each.message) for each in shown if "fallback deterministic coder" in str(each.message)]
    assert len(fallback) == 1, fallback
    assert "fallback deterministic coder" not in caplog.text


def test_records_of_other_levels_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    coder_warnings.forward_coder_warnings()
    logging.getLogger("apache_beam.coders.coder_impl").error("broken")
    assert "broken" in caplog.text


def test_beam_still_logs_this_message_under_this_name(caplog: pytest.LogCaptureFixture) -> None:
    """The text and the logger are Beam's: this fails when a new version of Beam changes them."""
    coder: Any = FastPrimitivesCoder().as_deterministic_coder("Step").get_impl()
    coder.encode(Key("a"))
    assert [r.name for r in caplog.records if "fallback deterministic coder" in r.getMessage()] == [
        "apache_beam.coders.coder_impl"
    ]
