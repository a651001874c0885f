"""`penstock tables`; the driver is played by the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import tables as tables_command
from penstock.cli.commands import cli
from penstock.cli.tables import Answers, answered
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot, parse_signal_line
from penstock.launch.run import ExitCode
from penstock.parked import ParkedTable, TableAction
from penstock.runner.driver.parked_tables import after_requests
from penstock.runner.protocol import Coordinator, EpochState
from penstock.runner.protocol.record import ParkedPublications
from penstock.runner.remote import RemoteJob
from penstock.runner.store import Checkpoint
from penstock.runner.store.table_requests import TableRequests, TableRequestWatch

ORDERS = ParkedTable(
    "/lake/orders", "public.orders", "the column v is text", 5_000_000, 12, 345, False, b"", 4_000_000
)
ITEMS = replace(ORDERS, name="/lake/items", source="public.items")


def state_of(*tables: ParkedTable) -> EpochState:
    return EpochState(parked=tuple(ParkedPublications("To lake/Publish", each) for each in tables))


class Driver:
    """A driver whose checkpoint has parked tables."""

    def __init__(self, folder: Path, *tables: ParkedTable) -> None:
        self.folder = str(folder / "checkpoint")
        self.checkpoint = Checkpoint.open(self.folder)
        self.coordinator = Coordinator(self.checkpoint)
        self.coordinator.take_over()
        self.now = 0.0
        self.watch = TableRequestWatch(self.checkpoint, clock=lambda: self.now)
        self.commit(*tables)

    def commit(self, *tables: ParkedTable) -> None:
        self.coordinator.commit(self.coordinator.begin(), state_of(*tables))
        self.watch.committed()

    def obey(self, **outcome: Any) -> None:
        """Commit what requests make of the tables; `outcome` changes those that are resuming."""
        self.now += 100
        after = after_requests(self.coordinator.record.state, self.watch.look())
        tables = [each.table for each in after.parked]
        self.commit(*(replace(each, **outcome) if each.resuming else each for each in tables))

    @property
    def remote(self) -> RemoteJob:
        return RemoteJob.open(self.folder)


def penstock(driver: Driver, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["tables", driver.folder, *arguments])


def outcome(driver: Driver, action: str, *steps: Callable[[], Any]) -> tuple[Answers, list[str]]:
    """Return what the command knows and says while the driver does one step after the other."""
    said: list[str] = []
    driver.remote.request_table(action, ORDERS)
    coming = iter(steps)
    seconds = iter(range(100))
    answers = answered(
        driver.remote,
        action,
        [ORDERS],
        10.0,
        said.append,
        clock=lambda: float(next(seconds)),
        pause=lambda _: next(coming, lambda: None)(),
    )
    return answers, said


def test_parked_tables_are_listed_with_reason_time_and_size(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS, ITEMS)
    listed = penstock(driver).output
    for text in (
        "public.orders",
        "1970-01-01T00:00:05.000Z",
        "12",
        "345",
        "/lake/items",
        "the column v is text",
    ):
        assert text in listed
    first = json.loads(penstock(driver, "--json").output)[0]
    assert (first["source"], first["bytes"], first["complete_until"]) == (
        "public.orders",
        345,
        "1970-01-01T00:00:04.000Z",
    )
    driver.commit()
    assert penstock(driver).output == "no table is parked\n"


@pytest.mark.parametrize("name", ["public.orders", "/lake/orders"])
def test_a_request_is_left_for_the_table_that_is_named(name: str, tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS, ITEMS)
    assert penstock(driver, "resume", name, "--wait", "0").exit_code == 0
    (request,) = TableRequests(driver.checkpoint).all()
    assert (request.name, request.since_us, request.action) == ("/lake/orders", 5_000_000, TableAction.RESUME)


def test_a_name_that_is_not_parked_is_refused_and_the_error_names_those_that_are(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS, ITEMS)
    for arguments in (("skip", "public.order"), ("skip",)):
        refused = penstock(driver, *arguments)
        assert refused.exit_code == ExitCode.CONFIGURATION
        assert "public.orders, public.items" in refused.output
    assert not TableRequests(driver.checkpoint).all()


def test_the_command_waits_until_the_table_goes_on(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    resuming = outcome(driver, "resume", lambda: None, driver.obey, driver.commit)
    assert resuming == (Answers([ORDERS], []), ["public.orders goes on"])
    driver.commit(ORDERS)
    assert outcome(driver, "skip", driver.obey) == (Answers([ORDERS], []), ["public.orders goes on"])


def test_the_command_says_that_the_table_is_refused_again(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    answers, said = outcome(driver, "resume", lambda: driver.obey(resuming=False, reason="still text"))
    assert (answers, said) == (Answers([], []), ["public.orders is refused again: still text"])


def job_file(driver: Driver, folder: Path) -> Path:
    """Return the file of a job that has a signal_folder."""
    signals, job = folder / "signals", folder / "job.yaml"
    signals.mkdir()
    job.write_text(
        f"template: postgres-to-delta\nparameters:\n  signal_folder: {signals}\n"
        f"runner:\n  checkpoint_dir: {driver.folder}\n"
    )
    return job


def test_a_refill_asks_for_all_rows_when_the_table_is_empty(tmp_path: Path, monkeypatch: Any) -> None:
    driver = Driver(tmp_path, ORDERS, ITEMS)
    job = job_file(driver, tmp_path)
    steps = iter((lambda: None, lambda: driver.commit(ITEMS)))
    seen: list[bool] = []

    def pause(_: float) -> None:
        seen.append(any((tmp_path / "signals").iterdir()))
        next(steps)()

    monkeypatch.setattr(tables_command, "answered", partial(answered, pause=pause))
    asked = CliRunner().invoke(cli, ["tables", str(job), "refill", "public.orders"])
    assert asked.exit_code == 0, asked.output
    assert seen == [False, False], "the job is asked while the table still gets its changes from files"
    assert "asked the job to read all rows of public.orders" in asked.output
    (signal,) = (tmp_path / "signals").iterdir()
    data = parse_signal_line(signal.read_text(), "")
    assert isinstance(data, ExecuteSnapshot)
    assert data.tables == ("public\\.orders",)


def test_a_refill_that_is_not_answered_says_how_to_ask_for_the_rows(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    job = job_file(driver, tmp_path)
    asked = CliRunner().invoke(cli, ["tables", str(job), "refill", "public.orders", "--wait", "0.1"])
    assert asked.exit_code == ExitCode.FAILED
    assert f"run: penstock snapshot {job} --table 'public\\.orders'" in asked.output
    assert not any((tmp_path / "signals").iterdir())


def test_a_refill_whose_rows_could_not_be_asked_for_is_refused_before_anything_is_dropped(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path, ORDERS)
    assert "needs the job file" in penstock(driver, "refill", "public.orders").output
    job = job_file(driver, tmp_path)
    for change, options, text in (
        (lambda: None, ("--wait", "0"), "it must wait"),
        ((tmp_path / "signals").rmdir, (), "there is no signal_folder"),
    ):
        change()
        refused = CliRunner().invoke(cli, ["tables", str(job), "refill", "public.orders", *options])
        assert refused.exit_code == ExitCode.CONFIGURATION
        assert text in refused.output
    assert not TableRequests(driver.checkpoint).all()


def test_a_request_stays_for_the_next_start(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    answers, said = outcome(driver, "resume")
    assert answers == Answers([], [ORDERS])
    assert "the request stays, for this run of the job or the next one" in said[0]
    assert driver.remote.requested_table("resume", ORDERS)


def test_requests_are_deleted_after_the_commit_and_not_before(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    driver.remote.request_table("skip", ORDERS)
    driver.now = 1.0
    assert driver.watch.look()
    assert driver.remote.requested_table("skip", ORDERS), "a driver that is killed here forgets the request"
    driver.watch.committed()
    assert not driver.remote.requested_table("skip", ORDERS)


def test_a_request_about_an_earlier_parking_changes_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path, ORDERS)
    driver.remote.request_table("skip", ORDERS)
    driver.commit(again := replace(ORDERS, since_us=9_000_000))
    driver.obey()
    assert driver.remote.parked() == [again]
