"""What every sink promises, checked over each sink with a service on this machine; see `tests.support.sinks`.

The pipeline is the one of the kill campaigns, in this process: four writers insert, update and delete rows, change
their keys, and make one row that targets refuse. Requests are lost, held and repeated where a test says so.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.io.staging import LedgerConflictError
from penstock.io.staging.errors import OutputTakenError
from penstock.runner.protocol import EpochFailedError
from tests.conformance.sinks.bigquery import BigQueryInMemory
from tests.conformance.sinks.run import SinkRun, patched
from tests.conformance.sinks.toy import Toy
from tests.support.sinks import TARGETS
from tests.support.sinks.network import Fate, Held, Network, ProcessKilled, lost
from tests.support.sinks.queues import PubSub
from tests.support.sinks.target import TargetUnderTest
from tests.support.waiting import join

SINKS: dict[str, type[TargetUnderTest]] = {"toy": Toy, **TARGETS, "bigquery": BigQueryInMemory}
MARKERS = {
    "kafka": [pytest.mark.kafka, pytest.mark.slow],
    "pubsub": [pytest.mark.pubsub, pytest.mark.slow],
    "spanner": [pytest.mark.emulator, pytest.mark.slow],
    "bigtable": [pytest.mark.emulator, pytest.mark.slow],
    "spark": [pytest.mark.spark],
}
services = pytest.mark.long_cases(
    "iceberg", "kafka", "sql", "pubsub", "bigtable", "bigquery", "spark", seconds=5
)
"""`make test` sees a pipeline of each sink without faults, and all faults with files, Delta and Spanner."""
RETRIES = 3
"""Tries of an epoch in which a driver may be fenced by another one."""
_PLACES = itertools.count()
# The client of Pub/Sub sends from its own threads, where the killed process ends.
THREADS_END = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKERS.get(name, ())) for name in SINKS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running target of each sink, for all tests of the module."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    folder, network = tmp_path_factory.mktemp(request.param), Network()
    (folder / "hooks").mkdir()
    target = SINKS[request.param](folder / "target", folder / "hooks", network)
    target.start()
    yield target
    target.stop()
    network.close()


@pytest.fixture
def patch(server: TargetUnderTest) -> Iterator[pytest.MonkeyPatch]:
    yield from patched(server)


@pytest.fixture
def run(server: TargetUnderTest, patch: pytest.MonkeyPatch, tmp_path: Path) -> SinkRun:
    """The sink over a new place of its target."""
    server.create(f"place{next(_PLACES)}")
    assert server.network is not None
    server.network.recover()
    return SinkRun(server, server.network, tmp_path)


_REQUESTS: dict[type, int] = {}


def requests_of(run: SinkRun) -> int:
    """Return how many requests a run of a sink takes, with requests of the usual size."""
    kind = type(run.target)
    if kind not in _REQUESTS:
        _REQUESTS[kind] = count_requests(run)
    return _REQUESTS[kind]


def count_requests(run: SinkRun) -> int:
    """Run to the end without faults, count the requests, and begin again."""
    run()
    requests = run.network.requests
    assert run.faults() == []
    begin_again(run)
    return requests


def begin_again(run: SinkRun) -> None:
    """Give the run a new checkpoint and a new place of its target."""
    shutil.rmtree(run.folder)
    run.folder.mkdir()
    run.target.create(f"place{next(_PLACES)}")


def without_patience(run: SinkRun, patch: pytest.MonkeyPatch) -> None:
    """Let a sink fail at the first request without an answer, as if its process had ended there."""
    run.target.lose_patience(patch)

    def once(work: Callable[[], Any], *others: Any) -> Any:
        return work()

    for module in ("send", "publish_epochs"):
        patch.setattr(f"penstock.io.staging.{module}.repeat_while_unavailable", once)


def test_every_change_is_there_once_and_the_refused_row_is_in_the_error_output(run: SinkRun) -> None:
    run()
    _REQUESTS.setdefault(type(run.target), run.network.requests)
    assert run.faults() == []


@services
def test_an_epoch_that_is_sent_twice_changes_nothing(run: SinkRun) -> None:
    """The driver dies after each publication, before the commit that would say so."""
    failed = 0
    while True:
        try:
            run(fails_after_sending=True)
            break
        except EpochFailedError:
            failed += 1
    assert failed >= run.epochs
    assert run.faults() == []


@services
@THREADS_END
def test_a_crash_at_any_request_loses_and_doubles_nothing(run: SinkRun, campaign: Any) -> None:
    rng, total = campaign.random("crashes"), requests_of(run)
    crashes = 0
    with pytest.MonkeyPatch.context() as impatient:
        without_patience(run, impatient)
        for _ in range(campaign.size(4, 50)):
            fate = rng.choice((Fate.REQUEST_LOST, Fate.ANSWER_LOST))
            run.network.kill_at(rng.randrange(total // 3), fate)
            try:
                run()
                break
            except (EpochFailedError, ProcessKilled):
                crashes += 1
    # The target may still be busy with what the killed drivers have left, so the last run has patience.
    run.network.recover()
    run(retries=RETRIES)
    assert crashes
    assert run.faults() == []


@services
@pytest.mark.parametrize("fate", [Fate.REQUEST_LOST, Fate.ANSWER_LOST], ids=lambda fate: fate.name)
def test_requests_that_fail_for_a_while_are_repeated_until_they_succeed(
    run: SinkRun, campaign: Any, fate: Fate
) -> None:
    if not run.target.outage:
        pytest.skip("the page of the sink promises no patience")
    total = requests_of(run)
    run.network.plan = lost(campaign.random(f"outage {fate.name}").randrange(total // 2), 3, fate)
    run()
    assert run.faults() == []


@services
@pytest.mark.parametrize("part", [0.4, 0.7])
def test_a_driver_that_was_paused_and_wakes_up_after_its_successor_changes_nothing(
    run: SinkRun, patch: pytest.MonkeyPatch, part: float
) -> None:
    first = round(requests_of(run) * part)
    run.target.wait_for_held(patch)
    # A driver does not wait for the answer to each request, such as the last one of a connection.
    for number in range(first, first + 5):
        end = end_of_paused_driver(run, number)
        assert run.faults() == []
        if end is not None:
            assert isinstance(end, Exception), end
            return
        begin_again(run)
    raise AssertionError("no request held the driver")


def end_of_paused_driver(run: SinkRun, number: int) -> BaseException | None:
    """Hold a request of a driver until a second one has come to the end; return how the first one ends then.

    None: it did not wait for the request.
    """
    held = Held(number)
    run.network.plan = held
    ends: list[BaseException] = []

    def paused() -> None:
        try:
            run(retries=RETRIES)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=paused, daemon=True)
    thread.start()
    try:
        assert held.wait(), f"request {number} has not come: the run has fewer requests than the one before"
        run(retries=RETRIES)
        waited = thread.is_alive()
    finally:
        held.release()
        join(thread)
    assert held.until_released, "the successor has waited for the paused driver"
    assert not waited or ends, "the paused driver took itself for the current one"
    # A server may end the session of a paused driver, which then does not wait for the release.
    return ends[0] if ends else None


@services
@THREADS_END
def test_a_batch_of_many_requests_is_whole_after_a_crash_in_its_middle(
    run: SinkRun, patch: pytest.MonkeyPatch, campaign: Any
) -> None:
    run.epochs = 1
    run.target.shrink_requests(patch)
    patch.setattr("penstock.io.staging.roll_batches.INLINE_BYTES", 0)
    total = count_requests(run)
    with pytest.MonkeyPatch.context() as impatient:
        without_patience(run, impatient)
        number = campaign.random("large").randrange(total // 4, total * 3 // 4 + 1)
        run.network.kill_at(number, Fate.ANSWER_LOST)
        with pytest.raises((EpochFailedError, ProcessKilled)):
            run()
    run.network.recover()
    run(retries=RETRIES)
    assert run.faults() == []


@services
def test_without_an_error_output_a_refused_row_ends_the_pipeline_and_nothing_is_lost(run: SinkRun) -> None:
    with pytest.raises(EpochFailedError) as failed:
        run(error_output=False)
    cause = failed.value.__cause__
    assert isinstance(cause, PenstockError), cause
    assert "xxxx" not in str(cause), "a message has a value of the row"
    run()
    assert run.faults() == []


@services
def test_a_copy_of_the_checkpoint_is_refused(run: SinkRun) -> None:
    """Both continue with the same record, so both drivers have the same generation and the same epochs."""
    if not run.target.has_ledger:
        pytest.skip("the target cannot tell a copy from the original")
    with pytest.raises(EpochFailedError):
        run(fails_after_sending=True)
    with pytest.raises(EpochFailedError):
        run(fails_after_sending=True)
    copy = run.folder / "copy"
    shutil.copytree(run.folder / "checkpoint", copy / "checkpoint")
    run()
    with pytest.raises((EpochFailedError, OutputTakenError)) as failed:
        run(folder=copy)
    found = [failed.value, failed.value.__cause__]
    assert any(isinstance(each, LedgerConflictError | OutputTakenError) for each in found), found
    assert run.faults() == []


@pytest.mark.pubsub
@pytest.mark.slow
@pytest.mark.parametrize("ordering", [True, False])
@pytest.mark.parametrize("server", ["pubsub"], indirect=True)
def test_messages_have_ordering_keys_unless_ordering_is_off(run: SinkRun, ordering: bool) -> None:
    run.options["ordering"] = ordering
    total = requests_of(run)
    run.network.plan = lost(total // 2, 3)
    run()
    assert run.faults() == []
    assert isinstance(run.target, PubSub)
    keys = run.target.ordering_keys()
    assert len(keys) > 10 if ordering else keys == {""}
