"""The effect of a start of each of many jobs, as `penstock plan` shows it. Starts nothing and changes nothing."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.cli.checks import refusals, try_to_build
from penstock.cli.common import words_of
from penstock.cli.configuration import Configuration, ConfigurationError
from penstock.cli.job_places import job_files_below
from penstock.cli.job_views import WatchedJob
from penstock.cli.resolve import resolve
from penstock.cli.table import as_table
from penstock.errors import PenstockError
from penstock.launch.run import ExitCode
from penstock.object_stores.location import locate, shown_url

REFUSED = "is refused"

_HEADER = ("JOB", "TEMPLATE", "CHECKPOINT", "A START", "WARNINGS")


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job file and what its start would do.

    `start` is ``begins``, ``continues``, ``reads on``, ``has ended`` or ``is refused``, then `problems` say why.
    `state` is the state of its checkpoint, ``none`` if a start creates it. A text is empty if it is not known.
    `exit_code` is the code that the start is refused with, otherwise 0.
    """

    file: str
    template: str = ""
    checkpoint: str = ""
    state: str = ""
    start: str = REFUSED
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    exit_code: ExitCode = ExitCode.DONE


def planned_jobs(places: Sequence[str], *, online: bool) -> list[PlannedJob]:
    """Return the jobs of job files and of folders with job files, each file once. `online`: the services are asked too.

    What cannot be read is a job that is refused, so that the others are shown.

    Raises:
        PenstockError, OSError: there is one place, and it has no job file.
    """
    files: dict[Path, str] = {}
    unreadable = []
    for place in places:
        try:
            files |= {Path(each).resolve(): each for each in job_files_below(place)}
        except (PenstockError, OSError) as error:
            if len(places) == 1:
                raise
            problems = (str(error),)
            unreadable.append(
                PlannedJob(shown_url(place), problems=problems, exit_code=ExitCode.CONFIGURATION)
            )
    return [*_with_shared_checkpoints([_planned(each, online) for each in files.values()]), *unreadable]


def as_text(jobs: Sequence[PlannedJob], *, online: bool) -> str:
    """Return the table of the jobs, and below it their problems and warnings.

    The number of warnings of a job that is not refused is known only after the services were asked (`online`).
    """
    rows = [
        (
            each.file,
            each.template,
            each.state,
            each.start,
            str(len(each.warnings)) if online or each.warnings else "",
        )
        for each in jobs
    ]
    notes = [(each.file, [*each.problems, *(f"Warning: {text}" for text in each.warnings)]) for each in jobs]
    return as_table(_HEADER, rows, notes)


def _planned(file: str, online: bool) -> PlannedJob:
    try:
        configuration = resolve(file, (), {}, os.environ)
    except ConfigurationError as error:
        return PlannedJob(file, problems=_texts(error), exit_code=ExitCode.CONFIGURATION)
    folder = str(configuration.runner.get("checkpoint_dir", ""))
    job = PlannedJob(file, configuration.template.name, str(locate(folder)) if folder else "", _state(folder))
    try:
        pipeline = try_to_build(configuration, to_run=online)
    except ConfigurationError as error:
        return replace(job, problems=_texts(error), exit_code=ExitCode.CONFIGURATION)
    try:
        start, warnings = _checked(configuration, pipeline, online)
    except Exception as error:  # `run` would not start either, whatever the error
        problems = tuple(refusals(configuration, error))
        return replace(job, problems=problems, exit_code=ExitCode.PREFLIGHT)
    return replace(job, state=job.state or "none", start=start, warnings=warnings)


def _texts(error: ConfigurationError) -> tuple[str, ...]:
    return tuple(map(str, error.problems))


def _state(folder: str) -> str:
    """Return the state of a checkpoint in a word; empty if there is none, or if it cannot be read."""
    try:
        # Without the job file: its pipeline is built once, by the check.
        return WatchedJob(folder).look(whole=False).label if folder else ""
    except Exception:
        # The check of the checkpoint says why, or that a start creates it.
        return ""


def _checked(configuration: Configuration, pipeline: Any, online: bool) -> tuple[str, tuple[str, ...]]:
    """Return what a start would do and its warnings, or raise what it would be refused with."""
    from penstock import preflight

    with _logged_warnings() as logged:
        asked = preflight.preflight(pipeline) if online else []
        start = pipeline.runner.check(pipeline)
    # The check before may log a warning twice.
    return str(start), tuple(map(words_of(configuration), dict.fromkeys([*asked, *logged])))


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _logged_warnings() -> Iterator[list[str]]:
    """Collect what the check of a checkpoint logs: it warns of a checkpoint that another pipeline has written."""
    collector, logger = _Collector(), logging.getLogger("penstock.runner")
    logger.addHandler(collector)
    try:
        yield collector.texts
    finally:
        logger.removeHandler(collector)


def _with_shared_checkpoints(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Refuse jobs that name one checkpoint: the second one that starts would find the driver of the first."""
    files = defaultdict(list)
    for each in jobs:
        if each.checkpoint:
            files[each.checkpoint].append(each.file)
    return [
        replace(
            each,
            start=REFUSED,
            problems=(*each.problems, _shared(each, files[each.checkpoint])),
            exit_code=max(each.exit_code, ExitCode.CONFIGURATION),
        )
        if len(files.get(each.checkpoint, ())) > 1
        else each
        for each in jobs
    ]


def _shared(job: PlannedJob, files: Sequence[str]) -> str:
    others = ", ".join(each for each in files if each != job.file)
    return f"checkpoint_dir {job.checkpoint} is also the checkpoint of {others}: give each job its own folder"
