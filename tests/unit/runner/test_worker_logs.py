"""Levels of workers' logs, and the records that the driver shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.runner.planning.worker_logging import WorkerLogging, worker_logging
from penstock.runner.tasks import worker_logs
from penstock.runner.tasks.worker_logs import MAX_RECORDS, WorkerLogRecord, apply_levels, collected_logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    level = logger.level
    yield logger
    logger.setLevel(level)
    logging.getLogger("a.b").setLevel(logging.NOTSET)
    logging.getLogger("penstock").setLevel(logging.NOTSET)
    worker_logs._applied = None


def test_workers_log_at_the_level_of_the_drivers_root_logger(root: logging.Logger) -> None:
    root.setLevel(logging.INFO)
    assert worker_logging(PipelineOptions([]), to_driver=False).level == logging.INFO


def test_workers_log_warnings_of_penstock_where_the_command_line_hides_those_of_libraries(
    root: logging.Logger,
) -> None:
    root.setLevel(logging.ERROR)
    assert worker_logging(PipelineOptions([]), to_driver=False).overrides == {}
    logging.getLogger("penstock").setLevel(logging.INFO)
    chosen = worker_logging(PipelineOptions([]), to_driver=False)
    assert (chosen.level, chosen.overrides) == (logging.ERROR, {"penstock": logging.WARNING})


def test_options_of_beam_set_the_levels_of_workers() -> None:
    flags = ["--default_sdk_harness_log_level=debug", '--sdk_harness_log_level_overrides={"a.b": "ERROR"}']
    chosen = worker_logging(PipelineOptions(flags), to_driver=True)
    assert chosen == WorkerLogging(logging.DEBUG, {"a.b": logging.ERROR}, to_driver=True)


def test_an_unknown_level_is_refused_with_the_known_levels() -> None:
    with pytest.raises(UsageError, match="WARNING.* not 'loud'"):
        worker_logging(PipelineOptions(["--default_sdk_harness_log_level=loud"]), to_driver=False)


def test_levels_of_one_pipeline_end_with_the_next_one_in_the_same_worker(root: logging.Logger) -> None:
    apply_levels(WorkerLogging(logging.INFO, {"a.b": logging.ERROR}))
    assert (root.level, logging.getLogger("a.b").level) == (logging.INFO, logging.ERROR)
    apply_levels(WorkerLogging(logging.WARNING))
    assert (root.level, logging.getLogger("a.b").level) == (logging.WARNING, logging.NOTSET)


def test_the_driver_gets_a_limited_number_of_warnings_and_errors_of_a_cluster() -> None:
    records: list[WorkerLogRecord] = []
    with collected_logs(WorkerLogging(to_driver=True), records):
        logging.getLogger("a.b").info("not this")
        for number in range(MAX_RECORDS + 5):
            logging.getLogger("a.b").warning("number %d", number)
    assert [record.text for record in records] == [f"number {n}" for n in range(MAX_RECORDS)]


def test_the_driver_shows_a_workers_warning_under_the_name_of_its_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker_logs.show_logs([WorkerLogRecord("a.b", logging.ERROR, "gone", "file.py", 3, 1.0)])
    worker_logs.show_logs([WorkerLogRecord("a.b", logging.DEBUG, "too quiet", "file.py", 3, 1.0)])
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("a.b", "ERROR", "in a worker: gone")
    ]
