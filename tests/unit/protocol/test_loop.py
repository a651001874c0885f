"""The order of an epoch, and what is done when one fails."""

from __future__ import annotations

import itertools
import logging

import pytest

from penstock.compat import add_note
from penstock.errors import PositionLostError, SetupError, UnavailableError
from penstock.runner.protocol import (
    CheckpointError,
    CommitUnknownError,
    EpochFailedError,
    EpochState,
    NotWrittenError,
    OutcomeUnknownError,
    Publication,
    SupersededError,
    run_epochs,
)
from penstock.runner.protocol.loop import back_off_s
from penstock.runner.store import Checkpoint

PENDING = EpochState(publications=(Publication("Publish", b"x"),))


@pytest.fixture
def coordinator(driver):
    first = driver("first")
    first.take_over()
    return first


def script(*steps):
    """An epoch function that plays one step a call (a state, None, an error); it keeps what it got."""
    calls = []

    def epoch(record, attempt):
        calls.append((record, attempt))
        step = steps[len(calls) - 1]
        if isinstance(step, Exception):
            raise step
        return step

    epoch.calls = calls
    return epoch


DONE = EpochState(done=True)


def test_each_epoch_begins_from_the_record_that_was_committed_last(coordinator):
    epoch = script(PENDING, DONE)
    last = run_epochs(coordinator, epoch, retries=0)
    assert [record.number for record, _ in epoch.calls] == [1, 2]
    assert [attempt.epoch for _, attempt in epoch.calls] == [2, 3]
    assert epoch.calls[1][0].state == PENDING
    assert last.state.done
    assert last.epochs == 2


def test_a_checkpoint_that_is_done_runs_nothing(coordinator):
    run_epochs(coordinator, script(DONE), retries=0)
    epoch = script()
    assert run_epochs(coordinator, epoch, retries=0).number == 2
    assert epoch.calls == []


def test_a_failed_epoch_is_repeated_from_the_same_record_as_another_attempt(coordinator):
    epoch, pauses = script(RuntimeError(), RuntimeError(), DONE), []
    run_epochs(coordinator, epoch, retries=2, pause=pauses.append)
    assert [record.number for record, _ in epoch.calls] == [1, 1, 1]
    assert len({attempt.nonce for _, attempt in epoch.calls}) == 3
    assert pauses == [0.5, 1.0]


def test_retries_are_counted_per_epoch(coordinator):
    epoch = script(RuntimeError(), PENDING, RuntimeError(), DONE)
    assert run_epochs(coordinator, epoch, retries=1, pause=lambda s: None).state.done


def test_an_epoch_that_fails_on_every_try_is_failed_never_done(coordinator, folder):
    failure = RuntimeError("the user's code")
    with pytest.raises(
        EpochFailedError,
        match=r"epoch 2 failed 3 times in a row; the last error is RuntimeError: the user's code. Record 1 is the last",
    ):
        run_epochs(coordinator, script(failure, failure, failure), retries=2, pause=lambda s: None)
    assert Checkpoint.open(folder).last_record().number == 1


def test_the_last_failure_is_the_cause(coordinator):
    failure = RuntimeError("second")
    with pytest.raises(EpochFailedError) as raised:
        run_epochs(coordinator, script(RuntimeError("first"), failure), retries=1, pause=lambda s: None)
    assert raised.value.__cause__ is failure


@pytest.mark.parametrize(
    "error",
    [
        PositionLostError("the database was recreated"),
        SetupError("no stream"),
        CheckpointError("the state run r is damaged"),
    ],
)
def test_a_permanent_error_is_not_retried(coordinator, error):
    epoch, pauses = script(error), []
    with pytest.raises(
        EpochFailedError, match=rf"epoch 2 failed, and another try would fail in the same way: .*{error}"
    ):
        run_epochs(coordinator, epoch, retries=3, pause=pauses.append)
    assert len(epoch.calls) == 1
    assert pauses == []


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), NotWrittenError(28, "disk full"), ValueError()]
)
def test_a_transient_error_is_retried(coordinator, error):
    assert run_epochs(coordinator, script(error, DONE), retries=1, pause=lambda s: None).state.done


def test_the_text_of_a_user_s_error_is_in_the_raised_message_with_its_step(coordinator):
    error = ValueError("row 4711 has no price")
    add_note(error, "in Parse, reading element 3.0; in the worker:\nTraceback")
    with pytest.raises(
        EpochFailedError, match="ValueError in Parse, reading element 3.0: row 4711 has no price. Record 1"
    ) as raised:
        run_epochs(coordinator, script(error), retries=0)
    assert "4711" not in raised.value.redacted
    assert "ValueError in Parse, reading element 3.0. Record 1" in raised.value.redacted


def test_a_user_error_s_text_is_not_logged(coordinator, caplog):
    with caplog.at_level(logging.DEBUG):
        run_epochs(coordinator, script(RuntimeError("row 4711"), DONE), retries=1, pause=lambda s: None)
    assert "RuntimeError" in caplog.text
    assert "4711" not in caplog.text


def test_an_epoch_with_nothing_to_do_commits_nothing(coordinator, folder):
    stops = iter([False, False, True])
    run_epochs(coordinator, script(None, None), retries=0, stop=lambda record: next(stops))
    assert Checkpoint.open(folder).record_numbers() == [1]


def test_an_idle_driver_stops_when_another_has_taken_over(coordinator, driver):
    def epoch(record, attempt):
        driver("new").take_over()

    with pytest.raises(SupersededError, match=r"by new"):
        run_epochs(coordinator, epoch, retries=5)


def test_a_failed_epoch_stops_a_driver_that_was_superseded(coordinator, driver):
    calls = []

    def epoch(record, attempt):
        calls.append(attempt)
        driver("new").take_over()
        raise FileNotFoundError("a state run that the newer driver has cleaned up")

    with pytest.raises(SupersededError, match=r"by new"):
        run_epochs(coordinator, epoch, retries=5, pause=lambda s: None)
    assert len(calls) == 1


def test_a_record_that_could_not_be_created_counts_as_a_failed_try(coordinator, monkeypatch):
    answers = iter([OSError("no space left"), None])
    create = Checkpoint.create_record

    def create_record(self, number, data):
        if answer := next(answers):
            raise answer
        return create(self, number, data)

    monkeypatch.setattr(Checkpoint, "create_record", create_record)
    epoch = script(DONE, DONE)
    assert run_epochs(coordinator, epoch, retries=1, pause=lambda s: None).number == 2
    assert len(epoch.calls) == 2


def unlisted(monkeypatch, when):
    """Let the listings of records fail, of those that are asked for, whose numbers from 0 are in `when`."""
    numbers, listed = itertools.count(), Checkpoint.record_numbers

    def record_numbers(self):
        if next(numbers) in when:
            raise OSError("stale file handle")
        return listed(self)

    monkeypatch.setattr(Checkpoint, "record_numbers", record_numbers)


@pytest.mark.parametrize("first", range(6))
def test_a_temporary_listing_error_does_not_stop_the_driver(coordinator, monkeypatch, first):
    unlisted(monkeypatch, range(first, first + 3))
    epoch = script(None, PENDING, DONE)
    assert run_epochs(coordinator, epoch, retries=0, pause=lambda s: None).number == 3
    assert len(epoch.calls) == 3


def test_a_permanent_listing_error_is_not_mistaken_for_a_newer_driver(coordinator, monkeypatch):
    unlisted(monkeypatch, range(1, 1000))
    with pytest.raises(CommitUnknownError, match="start the pipeline again"):
        run_epochs(coordinator, script(DONE), retries=3, pause=lambda s: None)


def test_an_unknown_commit_is_never_repeated_as_another_epoch(coordinator, monkeypatch):
    def create_record(self, number, data):
        raise OutcomeUnknownError

    monkeypatch.setattr(Checkpoint, "create_record", create_record)
    epoch = script(DONE)
    with pytest.raises(CommitUnknownError):
        run_epochs(coordinator, epoch, retries=5)
    assert len(epoch.calls) == 1


def test_stop_is_asked_with_the_last_record_and_can_wait_for_its_publications(coordinator):
    epoch = script(PENDING, EpochState())
    last = run_epochs(coordinator, epoch, retries=0, stop=lambda r: r.epochs > 0 and not r.state.publications)
    assert last.number == 3


def test_a_failed_epoch_is_not_retried_after_a_request_to_stop(coordinator):
    wanted, pauses = [], []
    last = run_epochs(
        coordinator,
        script(PENDING, ValueError("no")),
        retries=5,
        stop=lambda record: bool(wanted),
        on_failure=lambda record, failures, error: wanted.append(error),
        pause=pauses.append,
    )
    assert last.number == 2
    assert pauses == []


def test_a_request_to_stop_during_the_back_off_prevents_the_next_try(coordinator):
    wanted = []
    epoch = script(ValueError("no"))
    last = run_epochs(coordinator, epoch, retries=5, stop=lambda record: bool(wanted), pause=wanted.append)
    assert last.number == 1
    assert len(epoch.calls) == 1


def test_sweeps_run_after_every_few_commits_of_the_own_driver_and_after_the_last_one(coordinator):
    swept, seen = [], []
    epoch = script(*[PENDING] * 4, DONE)
    run_epochs(
        coordinator,
        epoch,
        retries=0,
        sweep_every=2,
        on_commit=lambda record: seen.append(record.number),
        on_sweep=lambda record, what: swept.append(record.number),
    )
    assert seen == [2, 3, 4, 5, 6]
    assert swept == [3, 5, 6]


def test_a_failing_clean_up_is_reported_and_does_not_stop_the_pipeline(coordinator, monkeypatch, caplog):
    monkeypatch.setattr(
        Checkpoint, "run_names", lambda self: (_ for _ in ()).throw(PermissionError("denied"))
    )
    swept = []
    run_epochs(
        coordinator, script(DONE), retries=0, sweep_every=1, on_sweep=lambda r, what: swept.append(what)
    )
    assert "could not clean up the checkpoint folder: denied" in caplog.text
    assert swept[0].more


def test_a_failed_clean_up_of_a_sink_is_reported_and_retried_after_the_next_sweep(coordinator, caplog):
    tried = []

    def clean_up(record, swept):
        tried.append(record.number)
        try:
            raise PermissionError(13, "denied", "/data/out/.penstock-staging")
        except OSError as error:
            raise RuntimeError("may quote an element") from error

    last = run_epochs(coordinator, script(PENDING, DONE), retries=0, sweep_every=1, on_sweep=clean_up)
    assert last.state.done
    assert tried == [2, 3]
    assert (
        "a sink could not clean up: RuntimeError, caused by PermissionError: [Errno 13] denied" in caplog.text
    )
    assert "quote" not in caplog.text


def test_back_off_doubles_up_to_half_a_minute():
    assert [back_off_s(n) for n in (1, 2, 3, 6, 7, 5000)] == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0]
