"""A session starts in the background, and ends if its pipeline is refused. Spark is a fake."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from penstock.runner.spark import session as session_module
from penstock.runner.spark.errors import SparkStartError
from penstock.runner.spark.session import begin_session

WAIT_SECONDS = 10.0


class FakeJvm:
    """Is ready when the test says so, or when it is killed."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.killed = False

    def kill(self) -> None:
        self.killed = True
        self.ready.set()


@dataclass
class FakeSession:
    jvm: FakeJvm
    is_local: bool
    steps: list[str] = field(default_factory=list)

    def connect(self) -> None:
        assert self.jvm.ready.wait(WAIT_SECONDS)
        if self.jvm.killed:
            raise SparkStartError("the JVM was ended by SIGKILL")
        self.steps.append("connected")

    def start_context(self) -> str:
        self.steps.append("context")
        return "context"

    def end(self) -> None:
        self.steps.append("ended")


class Launcher:
    """Takes the place of `OwnSession`. `launching` holds the launch of a JVM up until it is set."""

    def __init__(self) -> None:
        self.launching = threading.Event()
        self.launching.set()
        self.error: Exception | None = None
        self.launched: list[FakeSession] = []

    def launch(
        self, master: str | None, settings: Mapping[str, str], imports: Sequence[str] = ()
    ) -> FakeSession:
        assert self.launching.wait(WAIT_SECONDS)
        if self.error:
            raise self.error
        self.launched.append(FakeSession(FakeJvm(), (master or "local").startswith("local")))
        return self.launched[-1]

    def ready(self) -> FakeSession:
        """Let the JVM that was launched last become ready."""
        while not self.launched:
            threading.Event().wait(0.001)
        self.launched[-1].jvm.ready.set()
        return self.launched[-1]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    fake = Launcher()
    monkeypatch.setattr(session_module, "OwnSession", fake)
    monkeypatch.setattr(session_module, "has_gateway", lambda: False)
    monkeypatch.setattr(session_module, "warm_up", lambda context: fake.launched[-1].steps.append("warm"))
    monkeypatch.setattr(session_module, "_end_if_dead", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert session_module._beginning is None
    yield fake
    fake.launching.set()
    if session_module._beginning is not None:
        session_module._beginning.cancel()


def test_a_session_starts_and_runs_a_first_job_while_the_pipeline_is_planned(launcher: Launcher) -> None:
    start = begin_session(None, {})
    session = launcher.ready()
    assert start._thread is not None
    start._thread.join(WAIT_SECONDS)
    assert session.steps == ["connected", "context", "warm"]
    assert start.context() == "context"


def test_a_pipeline_that_waits_already_gets_no_first_job_before_its_own(launcher: Launcher) -> None:
    start = begin_session(None, {})
    start._needed.set()
    session = launcher.ready()
    assert start.context() == "context"
    assert session.steps == ["connected", "context"]


def test_a_cluster_sees_no_application_before_the_pipeline_is_accepted(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = begin_session("spark://host:7077", {})
    waits, wait = threading.Event(), start._needed.wait

    def wait_until_needed() -> bool:
        waits.set()
        return wait()

    monkeypatch.setattr(start._needed, "wait", wait_until_needed)
    session = launcher.ready()
    assert waits.wait(WAIT_SECONDS)
    start.release()
    assert session.steps == ["connected", "ended"]


def test_a_cluster_gets_no_first_job(launcher: Launcher) -> None:
    start = begin_session("yarn", {})
    session = launcher.ready()
    assert start.context() == "context"
    assert session.steps == ["connected", "context"]


def test_the_jvm_of_a_refused_pipeline_is_killed_and_the_next_pipeline_gets_another(
    launcher: Launcher,
) -> None:
    begin_session(None, {}).release()
    (refused,) = launcher.launched or [launcher.ready()]
    assert refused.jvm.killed
    assert refused.steps == ["ended"]
    start = begin_session(None, {})
    while len(launcher.launched) < 2:
        threading.Event().wait(0.001)
    launcher.ready()
    assert start.context() == "context"


def test_a_jvm_that_is_launched_after_its_pipeline_was_refused_is_killed_too(launcher: Launcher) -> None:
    launcher.launching.clear()
    start = begin_session(None, {})
    refused = threading.Thread(target=start.release)
    refused.start()
    assert start._cancelled.wait(WAIT_SECONDS)
    launcher.launching.set()
    refused.join(WAIT_SECONDS)
    (session,) = launcher.launched
    assert session.jvm.killed
    assert session.steps == ["ended"]


def test_a_session_that_was_ready_when_its_pipeline_was_refused_ends(launcher: Launcher) -> None:
    start = begin_session(None, {})
    session = launcher.ready()
    assert start._thread is not None
    start._thread.join(WAIT_SECONDS)
    start.release()
    assert session.jvm.killed
    assert session.steps[-1] == "ended"


def test_pipelines_that_begin_together_share_a_session_until_the_last_is_refused(launcher: Launcher) -> None:
    first, second = begin_session(None, {}), begin_session("local[9]", {"a": "b"})
    first.release()
    session = launcher.ready()
    assert second.context() == "context"
    assert launcher.launched == [session]
    assert not session.jvm.killed


def test_a_session_that_a_pipeline_has_got_does_not_end_with_it(launcher: Launcher) -> None:
    start = begin_session(None, {})
    session = launcher.ready()
    start.context()
    start.release()
    assert not session.jvm.killed
    assert "ended" not in session.steps


def test_an_error_of_the_start_reaches_the_pipeline_and_the_next_one_tries_again(launcher: Launcher) -> None:
    launcher.error = SparkStartError("no Java was found")
    with pytest.raises(SparkStartError, match="no Java was found"):
        begin_session(None, {}).context()
    launcher.error = None
    start = begin_session(None, {})
    launcher.ready()
    assert start.context() == "context"


def test_nothing_begins_on_the_jvm_of_a_submission(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    begin_session(None, {}).release()
    assert launcher.launched == []
