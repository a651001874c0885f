"""`penstock verify`: what it refuses, what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import verify as command
from penstock.cli.commands import cli
from penstock.compat import UTC
from penstock.verify import job as verify_job
from penstock.verify.job import TableResult
from penstock.verify.rounds import ColumnDifference, Finding, Kind

JOB: dict[str, Any] = {
    "template": "postgres-to-postgresql",
    "runner": {"checkpoint_dir": "/checkpoint"},
    "parameters": {
        "dsn": "dbname=shop",
        "publication": "all",
        "slot": "penstock",
        "target_dsn": "dbname=copy",
    },
}
MISSING = Finding(Kind.MISSING, '["Ada"]')
DIFFERENT = Finding(Kind.DIFFERENT, "[4]", [ColumnDifference("name", "Grace", None)])


class Remote:
    """The checkpoint of a job that is complete until noon."""

    name = "job"
    done = False
    has_record = True
    note: Any = None

    def last(self) -> Any:
        state = SimpleNamespace(done=self.done, draining=False)
        return SimpleNamespace(state=state, generation=1, committed_us=4e15) if self.has_record else None

    def started(self, generation: int) -> None: ...

    def ended(self, generation: int) -> Any:
        return self.note

    def wait_until_complete(self, until: datetime, *, sinks: Any, seconds: float, on_look: Any) -> bool:
        on_look({"Write/Publish": datetime(2026, 1, 31, 12, tzinfo=UTC)})
        return until <= datetime(2026, 1, 31, 12, tzinfo=UTC)


Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command over given results, in place of a comparison."""

    def run_(
        results: list[TableResult], *options: str, until_ns: int = 0, remote: Any = None, **more: Any
    ) -> Any:
        def compare(wait: Any, progress: Any, *, limit: int, read_again: Any) -> Any:
            assert (read_again is not None) == ("--repair" in options)
            wait(until_ns)
            return iter(results)

        monkeypatch.setattr(command, "remote_job", lambda job: remote or Remote())
        monkeypatch.setattr(command, "build", lambda configuration, *, to_run: "pipeline")
        monkeypatch.setattr(
            verify_job, "prepared", lambda *arguments, **more: SimpleNamespace(results=compare)
        )
        file = tmp_path / "job.yaml"
        parameters = JOB["parameters"] | more.pop("parameters", {})
        more = {"runner": {"checkpoint_dir": str(tmp_path / "checkpoint")}, **more}
        job = {**JOB, **more, "parameters": {name: each for name, each in parameters.items() if each}}
        file.write_text(json.dumps(job))
        return CliRunner().invoke(cli, ["verify", str(file), *options])

    return run_


def table(*differences: Finding, changing: tuple[str, ...] = ()) -> TableResult:
    return TableResult("public.orders", "replica.orders", 10, list(differences), list(changing))


def test_equal_tables_exit_with_0(run: Run) -> None:
    result = run([table()])
    assert (result.exit_code, result.stdout) == (0, "public.orders -> replica.orders: 10 rows, equal\n")


def test_differences_exit_with_1_and_show_no_value(run: Run) -> None:
    for options in ((), ("--json",)):
        result = run([table(MISSING, DIFFERENT)], *options)
        assert result.exit_code == 1
        assert "Ada" not in result.stdout
        assert "Grace" not in result.stdout
        assert "name" in result.stdout
        assert "missing" in result.stdout


def test_values_are_shown_on_demand(run: Run) -> None:
    result = run([table(MISSING, DIFFERENT)], "--show-values")
    assert 'missing    ["Ada"]' in result.stdout
    assert "name: source 'Grace', target NULL" in result.stdout
    (found,) = json.loads(run([table(DIFFERENT)], "--show-values", "--json").stdout)
    assert found["differences"] == [
        {
            "kind": "different",
            "key": "[4]",
            "columns": [{"column": "name", "source": "Grace", "target": None}],
        }
    ]


def test_rows_that_change_all_the_time_are_no_difference_and_exit_with_4(run: Run) -> None:
    result = run([table(changing=("[1]",))])
    assert result.exit_code == 4
    assert "equal" in result.stdout
    assert "not known: 1. These rows changed" in result.stdout
    assert run([table(MISSING, changing=("[1]",))]).exit_code == 1


def test_a_table_that_the_target_does_not_have_is_a_difference(run: Run) -> None:
    result = run([TableResult("public.orders", "replica.orders", 10, no_table=True)])
    assert result.exit_code == 1
    assert "no such table" in result.stdout


def test_a_target_that_does_not_become_complete_exits_with_4_and_says_until_when_it_is(run: Run) -> None:
    result = run([], until_ns=1_800_000_000_000_000_000)
    assert result.exit_code == 4
    assert "it is until 2026-01-31T12:00:00" in result.stderr


def test_a_repair_says_what_it_has_repaired_and_what_not(run: Run, tmp_path: Path) -> None:
    parameters = {"signal_folder": str(tmp_path)}
    result = table(MISSING, DIFFERENT, Finding(Kind.EXTRA, "[5]"))
    result.remaining = [DIFFERENT, Finding(Kind.EXTRA, "[5]")]
    shown = run([result], "--repair", "--show-values", parameters=parameters)
    assert shown.exit_code == 1
    assert "10 rows, 3 differences, 1 repaired\n" in shown.stdout
    assert 'missing    repaired  ["Ada"]\n' in shown.stdout
    assert "different  [4]\n" in shown.stdout
    assert "not repaired: 1 row that only the target has. Delete them there" in shown.stdout
    assert "still different: 1 row." in shown.stdout
    (found,) = json.loads(run([result], "--repair", "--json", parameters=parameters).stdout)
    assert [each["kind"] for each in found["repaired"]] == ["missing"]
    assert [each["kind"] for each in found["not_repaired"]] == ["different", "extra"]


def test_a_repair_of_all_differences_exits_with_0(run: Run, tmp_path: Path) -> None:
    result = table(MISSING)
    result.remaining = []
    assert run([result], "--repair", parameters={"signal_folder": str(tmp_path)}).exit_code == 0


def test_a_repair_needs_a_job_that_runs_and_takes_requests(run: Run, tmp_path: Path) -> None:
    result = run([], "--repair")
    assert (result.exit_code, "has no signal_folder" in result.stderr) == (2, True)
    remote = Remote()
    remote.note = SimpleNamespace(state="stopped", reason="")
    result = run([], "--repair", remote=remote, parameters={"signal_folder": str(tmp_path)})
    assert (result.exit_code, "the job does not run" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("state", "text"), [({"done": True}, "has ended"), ({"has_record": False}, "no checkpoint yet")]
)
def test_a_job_that_does_not_go_on_is_refused(run: Run, state: dict[str, Any], text: str) -> None:
    remote = Remote()
    vars(remote).update(state)
    result = run([], remote=remote)
    assert result.exit_code == 2
    assert text in result.stderr


def lines(format: str, **options: Any) -> dict[str, Any]:
    """Return what is different in a job that writes lines."""
    parameters = {"output": "/data", "target_dsn": "", "format": format, **options}
    return {"template": "postgres-to-files", "parameters": parameters}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (lines("debezium"), "format=debezium are not replayed: its records do not tell all values"),
        (lines("ydb"), "format=ydb are not replayed: its records have no version"),
        (
            lines("envelope", envelope={"converter": "avro", "registry_url": "mock://r"}),
            "envelope.converter=avro are not replayed",
        ),
        (
            {
                "template": "postgres-to-kafka",
                "parameters": {"bootstrap_servers": "broker", "target_dsn": ""},
            },
            "only PostgreSQL, Spanner, Delta and Iceberg",
        ),
        ({"parameters": {"mode": "log"}}, "only mode=current"),
        ({"parameters": {"where": "id > 3"}}, "leaves out changes of a row"),
        ({"parameters": {"further_slots": {"b": "b"}}}, "only jobs with one slot"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    run: Run, more: dict[str, Any], text: str
) -> None:
    result = run([], **more)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a job file" in result.stderr


def test_a_comparison_without_an_answer_says_how_to_continue_and_one_that_ends_leaves_nothing(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "digests"
    folder.mkdir()
    (folder / "t.digests").touch()
    late = 1_800_000_000_000_000_000
    result = run([], "--continue", "--folder", str(folder), until_ns=late)
    assert (result.exit_code, "run the same command with --continue" in result.stderr) == (4, True)
    assert run([table()], "--folder", str(folder)).exit_code == 0
    assert not folder.exists()


def test_a_checkpoint_in_an_object_store_needs_a_folder_to_continue(run: Run, tmp_path: Path) -> None:
    runner = {"checkpoint_dir": "s3://bucket/checkpoint"}
    result = run([table()], "--continue", runner=runner)
    assert (result.exit_code, "Compare with --folder" in result.stderr) == (2, True)
    assert run([table()], runner=runner).exit_code == 0
    result = run([table()], "--continue", "--folder", str(tmp_path / "digests"), runner=runner)
    assert result.exit_code == 0


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_compare(run: Run, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-verify").touch()
    assert run([table()]).exit_code == 0
    assert run([table()], "--continue").exit_code == 3
