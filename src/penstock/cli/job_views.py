"""Reads what `penstock status` and `penstock ui` show about jobs. Changes nothing in any folder."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from penstock.cli.common import build, checkpoint_of, configuration_of
from penstock.cli.configuration import Configuration
from penstock.cli.dead_letters import checked_letter, group_of
from penstock.cli.job_places import jobs_below
from penstock.cli.redaction import redacted, shown_value
from penstock.cli.runner_options import RUNNER_PACKAGE
from penstock.failures import describe_failure
from penstock.io.change_streams.undecodable import UNDECODABLE
from penstock.io.staging.refused import REFUSED
from penstock.launch.commit_exporter import committed_counters
from penstock.object_stores.location import locate, shown_url
from penstock.pipelines.published_folder import NoFolderError, PublishedFolder
from penstock.pipelines.replays import ReplayFolder
from penstock.pipelines.waiting_letters import not_replayed, oldest_letter
from penstock.telemetry.lineage import PartitionSpan, partition_spans
from penstock.telemetry.state import Condition, JobState, job_state
from penstock.telemetry.status import PipelineStatus, pipeline_status
from penstock.ui.view import BEHIND_SECONDS, Answer, JobView, LetterGroup, sink_of

SAMPLES = 1000
"""Number of commits of one job that a page remembers for its charts. A checkpoint has about the last ten."""
MAX_FILES = 2000
"""Number of files of a lineage log or of dead letters that a page reads, the newest ones."""
PARALLEL = 8
"""Number of checkpoints that are read at the same time, because object stores take long to answer."""

Found = TypeVar("Found")

_NO_SPANS: tuple[PartitionSpan, ...] = ()
_NO_LETTERS: tuple[tuple[LetterGroup, ...], float | None] = ((), None)

_NEEDS_JOB_FILE = (
    "The checkpoint alone does not say. Give the job file instead of the folder: penstock ui job.yaml"
)
_BUILDING = threading.Lock()
"""Pipelines are built one after the other: Beam does not say that several threads may."""


class WatchedJob:
    """One job: its checkpoint folder, and its job file if that is known. For any number of threads.

    It remembers the progress at the commits that it has seen: a checkpoint alone has records for a short chart only.
    """

    def __init__(self, folder: str, job_file: str = "", lineage: str | None = None) -> None:
        self.folder, self.job_file = str(locate(folder)), job_file
        self.key = hashlib.sha256(f"{self.folder}\n{job_file}".encode()).hexdigest()[:12]
        self._lineage = lineage
        self._lock = threading.Lock()
        self._job = ""
        self._samples: deque[tuple[int, PipelineStatus]] = deque(maxlen=SAMPLES)
        self._configured: tuple[float, Configuration | None, Any] | None = None

    def look(self, *, whole: bool) -> JobView:
        """Return the job as of now. `whole`: with everything, not only what a list of jobs shows.

        Raises:
            PenstockError, OSError: the checkpoint cannot be read.
        """
        remote = self._open()
        # Before the last record: otherwise a commit in between would be newer than the status as of now.
        samples = self._remember(remote)
        record, now = remote.last(), time.time()
        facts: dict[str, Any] = {"key": self.key, "folder": self.folder, "job_file": self.job_file}
        facts["name"] = Path(self.job_file).stem or _last_part(self.folder)
        if record is None:
            return JobView(at=now, state=job_state(None, (), now), job=remote.name, **facts)
        started = remote.started(record.generation)
        gone = str(started.process) if started and started.process.is_gone else ""
        state = job_state(
            record, remote.requested(record.generation), now, remote.ended(record.generation), gone
        )
        notes: dict[str, str] = {}
        facts |= {"samples": (*samples, self._now(remote, record, notes, whole=whole)), "notes": notes}
        if whole:
            facts |= self._details(remote, record, notes)
        return JobView(
            at=now,
            state=state,
            job=remote.name,
            reads=started.pipeline.reads if started else (),
            driver=record.writer,
            answers=_answers(remote.answers(record.generation)) if whole else (),
            record=record.number,
            generation=record.generation,
            **facts,
        )

    def watch(self, seconds: float) -> None:
        """Look at the job once a second for this time, to see its pace."""
        end = time.time() + seconds
        while time.time() < end:
            self._remember(self._open())
            time.sleep(min(1.0, max(0.0, end - time.time())))

    def pipeline(self) -> Any:
        """Return the Beam pipeline, which is not run; None without a complete job file.

        Raises:
            PenstockError, ValueError: a transform refuses a value of the job file.
        """
        return self._configuration()[1]

    def _open(self) -> Any:
        # By name: the command line does not import the runner.
        return import_module(RUNNER_PACKAGE).RemoteJob.open(self.folder)

    def _configuration(self) -> tuple[Configuration | None, Any]:
        """Return the configuration and the pipeline of the job file as it is now; None for what is not complete."""
        if not self.job_file:
            return None, None
        changed = Path(self.job_file).stat().st_mtime
        with _BUILDING:
            if self._configured is None or self._configured[0] != changed:
                configuration = configuration_of(self.job_file)
                pipeline = None if configuration is None else build(configuration, to_run=False)
                self._configured = changed, configuration, pipeline
            return self._configured[1:]

    def _remember(self, remote: Any) -> list[PipelineStatus]:
        """Add the commits since the last look; return those that are known."""
        with self._lock:
            if remote.name != self._job:  # another checkpoint in the same folder
                self._job = remote.name
                self._samples.clear()
            last = self._samples[-1][0] if self._samples else 0
            for record in remote.history(last):
                counters = committed_counters(remote.metrics(record))
                sample = pipeline_status(record.committed_us / 1e6, remote.progress(record), counters)
                self._samples.append((record.number, sample))
            return [sample for _, sample in self._samples]

    def _now(self, remote: Any, record: Any, notes: dict[str, str], *, whole: bool) -> PipelineStatus:
        counters = committed_counters(remote.metrics(record))
        now = pipeline_status(time.time(), remote.progress(record), counters)
        # The list decodes positions only of jobs that are behind: the pipeline of a job file takes a second to build.
        if self.job_file and (whole or (now.lag or 0.0) >= BEHIND_SECONDS):
            try:
                if pipeline := self.pipeline():
                    now = pipeline_status(time.time(), remote.progress(record, pipeline), counters)
            except Exception as error:
                # Whatever a transform raises, the checkpoint can still be shown.
                notes["positions"] = f"The job file cannot be used: {_reason(error)}"
        return now

    def _details(self, remote: Any, record: Any, notes: dict[str, str]) -> dict[str, Any]:
        counters = committed_counters(remote.metrics(record))
        found: dict[str, Any] = {
            "sinks": tuple(map(sink_of, remote.sinks(record))),
            "undecoded": sum(value for _, name, value in counters if name in (UNDECODABLE, REFUSED)),
        }
        configuration = None
        if not self.job_file:
            notes |= dict.fromkeys(("positions", "configuration"), _NEEDS_JOB_FILE)
        elif "positions" not in notes:
            configuration = self._configuration()[0]
            if configuration is None:
                text = "The job file is not complete: its run gets values from flags or from the environment"
                notes |= dict.fromkeys(("positions", "configuration"), text)
        if configuration is not None:
            found["configuration"] = {
                section: {name: shown_value(value) for name, value in values.items()}
                for section, values in redacted(configuration).items()
            }
        parameters: Mapping[str, Any] = {} if configuration is None else configuration.parameters
        found["has_signals"] = "signal_folder" in parameters
        lineage = self._lineage or str(parameters.get("lineage_log", ""))
        found["partitions"] = _or_note(notes, "partitions", _spans, lineage, _NO_SPANS)
        letters = str(parameters.get("dead_letters", ""))
        read = partial(_letters, self.folder)
        found["letters"], found["oldest_letter"] = _or_note(notes, "letters", read, letters, _NO_LETTERS)
        return found


def _answers(noted: Any) -> tuple[Answer, ...]:
    """Return the answers of services that a driver has noted: measurements as values of JSON."""
    return tuple(
        Answer(
            noted.at,
            value["name"],
            value["help"],
            ", ".join(text for _, text in value["labels"]),
            value["value"],
            value["unit"],
        )
        for value in noted.values
    )


def _or_note(
    notes: dict[str, str],
    section: str,
    read: Callable[[PublishedFolder, Sequence[str], Sequence[str]], Found],
    folder: str,
    nothing: Found,
) -> Found:
    """Return what `read` finds in a folder, its newest files and all its files; `nothing` if it cannot be read.

    A note says why it is nothing, or not everything.
    """
    if not folder:
        return nothing
    try:
        published = PublishedFolder(folder)
        files = published.files()
        if older := len(files[:-MAX_FILES]):
            notes[section] = f"{older} older files of {folder} are not read"
        return read(published, files[-MAX_FILES:], files)
    except NoFolderError:
        notes[section] = f"Nothing was written to {folder} yet."
    except Exception as error:
        # Whatever is wrong with this folder, the rest of the page is shown.
        notes[section] = _reason(error)
    return nothing


def _spans(published: PublishedFolder, newest: Sequence[str], _: Sequence[str]) -> tuple[PartitionSpan, ...]:
    return tuple(partition_spans(event for file in newest for event in _events(published, file)))


# Published files never change, and a page reads them again every few seconds.
@lru_cache(maxsize=4 * MAX_FILES)
def _events(published: PublishedFolder, file: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(line.content for line in published.lines(file))


def _letters(
    checkpoint: str, published: PublishedFolder, newest: Sequence[str], files: Sequence[str]
) -> tuple[tuple[LetterGroup, ...], float | None]:
    """Return the groups in the newest files, and the time of the oldest letter that no replay has taken."""
    taken = {file for each in ReplayFolder(checkpoint).planned() for file in each.files}
    counts: Counter[tuple[str, int, str]] = Counter()
    replayed: Counter[tuple[str, int, str]] = Counter()
    for file in newest:
        groups = _groups(published, file)
        counts.update(groups)
        if file in taken:
            replayed.update(groups)
    found = (LetterGroup(*group, letters, replayed[group]) for group, letters in counts.most_common())
    return tuple(found), oldest_letter(not_replayed(files, taken))


@lru_cache(maxsize=4 * MAX_FILES)
def _groups(published: PublishedFolder, file: str) -> Counter[tuple[str, int, str]]:
    return Counter(group_of(checked_letter(line).content) for line in published.lines(file))


class WatchedJobs:
    """The jobs of arguments: job files, checkpoints, and folders that have such. For any number of threads."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self._known: dict[str, WatchedJob] = {}

    def all(self) -> list[JobView]:
        """Return the jobs that there are now, briefly. One that cannot be read is a job with that as its state."""
        found, problems = self._find()
        with ThreadPoolExecutor(PARALLEL) as pool:
            return [*pool.map(lambda job: _look(job, whole=False), found), *problems]

    def one(self, key: str) -> JobView | None:
        """Return the job with a key, with everything; None if there is none."""
        if key not in self._known:
            self._find()
        job = self._known.get(key)
        return None if job is None else _look(job, whole=True)

    def _find(self) -> tuple[list[WatchedJob], list[JobView]]:
        """Return the jobs below all places, each job file and each other checkpoint once, and what cannot be read."""
        jobs: dict[str, WatchedJob] = {}
        folders: list[str] = []
        problems = []
        for place in self._places:
            try:
                files, checkpoints = jobs_below(place)
            except Exception as error:
                problems.append(_unreadable(place, "", error))
                continue
            for file in files:
                try:
                    job = WatchedJob(checkpoint_of(file), file)
                    jobs[job.key] = self._known.setdefault(job.key, job)
                except Exception as error:
                    problems.append(_unreadable(file, file, error))
            folders += checkpoints
        # Last, because a job file says more than the checkpoint that it names.
        named = {job.folder for job in jobs.values()}
        for job in map(WatchedJob, folders):
            if job.folder not in named:
                jobs[job.key] = self._known.setdefault(job.key, job)
        return list(jobs.values()), problems


def load_runner() -> None:
    """Import what reads checkpoints, which takes seconds, so that the first page need not wait for it."""
    _ = import_module(RUNNER_PACKAGE).RemoteJob


def _look(job: WatchedJob, *, whole: bool) -> JobView:
    try:
        return job.look(whole=whole)
    except Exception as error:
        # Whatever is wrong with one checkpoint, the others are shown.
        return replace(_unreadable(job.folder, job.job_file, error), key=job.key)


def _unreadable(place: str, job_file: str, error: Exception) -> JobView:
    # A text that cannot be located may hold a password.
    folder = shown_url(place)
    name = Path(job_file).stem or _last_part(folder)
    state = JobState(Condition.UNREADABLE, _reason(error))
    return JobView(time.time(), "", folder, state, name=name, job_file=job_file)


def _reason(error: Exception) -> str:
    """Return what is wrong, without text from other libraries or from users' code, except of the operating system."""
    text = str(error) if isinstance(error, OSError) else describe_failure(error)
    return text or type(error).__name__


def _last_part(folder: str) -> str:
    return folder.partition("?")[0].rstrip("/").rpartition("/")[2] or folder
