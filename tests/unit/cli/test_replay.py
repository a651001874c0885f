"""`penstock dead-letters replay`: which letters enter the pipeline again, where, and how often."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from click.testing import CliRunner

from penstock.cli import dead_letters as command
from penstock.cli.commands import cli
from penstock.errors import UsageError
from penstock.event import Kind, Op
from penstock.io.spanner.coder import DataChangeRecordCoder  # noqa: F401  registers the coder of the letters
from penstock.io.spanner.record import Mod
from penstock.launch.run import ExitCode
from penstock.pipelines import source_to_sink
from penstock.pipelines.replay import Replay
from penstock.pipelines.replays import ReplayFolder
from penstock.pipelines.spanner_to_files import spanner_to_files
from penstock.tables import TableSelection
from penstock.transforms.dead_letters import DeadLetter, dead_letter, letter_fields, letter_of
from tests.unit.events.test_spanner_events import KEY, record
from tests.unit.formats.events import event_of, schema_of

SHOP = {"project": "my-project", "instance": "main", "database": "shop", "change_stream": "All"}
SCHEMA = schema_of({"Id": Kind.INT64}, Name=Kind.STRING)
MASKED = event_of(SCHEMA, Op.CREATE, after={"Id": 7, "Name": "A"})
NATIVE = record(Mod(KEY, json.dumps({"Name": "Bob"}), "{}"))


def letter(element: Any, step: str, attempt: int = 1) -> DeadLetter:
    made = dead_letter((element, (ValueError, "no", ())), attempt)
    return DeadLetter(
        made.reason, made.source, made.version, made.element_type, made.data, made.attempt, step
    )


@pytest.mark.parametrize("element", [MASKED, NATIVE, b"bytes"], ids=["event", "record", "bytes"])
def test_a_letter_comes_back_from_its_file_with_its_element(element: Any) -> None:
    written = letter(element, "ToLines")
    read = letter_of(json.loads(json.dumps(letter_fields(written))))
    assert (read, read.element) == (written, element)
    with pytest.raises(ValueError, match="not a dead letter"):
        letter_of({"reason": "x"})


def test_a_class_that_no_longer_exists_is_named() -> None:
    gone = DeadLetter("x", None, None, "penstock.gone.Record", b"", 1, "ToChangeEvents")
    with pytest.raises(ValueError, match="there is no class penstock.gone.Record"):
        _ = gone.element


def lines_below(folder: Path) -> list[Any]:
    files = sorted(folder.rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_letter_passes_the_step_that_refused_it_and_those_after_it(tmp_path: Path) -> None:
    letters = [letter(NATIVE, "ToChangeEvents"), letter(MASKED, "ToLines", attempt=2)]
    choices: dict[str, Any] = {"format": "ydb", "mask_columns": {"Name": "truncate:1"}}
    with beam.Pipeline(FnApiRunner()) as pipeline:
        spanner_to_files(
            pipeline,
            **SHOP,
            **choices,
            output=str(tmp_path / "out"),
            dead_letters=str(tmp_path / "dead"),
            replay=Replay(letters),
        )
    found = lines_below(tmp_path / "out")
    assert sorted(line["update"]["Name"] for line in found) == ["A", "B"]
    # The files are those of the hour of the commit, not of the replay.
    assert {file.parent.name for file in (tmp_path / "out").rglob("*.jsonl")} >= {"2022-12-11T21"}


def test_a_letter_that_fails_again_is_a_letter_of_the_next_attempt(tmp_path: Path) -> None:
    broken = letter(record(Mod(KEY, '{"Price":"x"}', "{}")), "ToChangeEvents", attempt=3)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        spanner_to_files(
            pipeline,
            **SHOP,
            format="ydb",
            output=str(tmp_path / "out"),
            dead_letters=str(tmp_path / "dead"),
            replay=Replay([broken]),
        )
    (again,) = lines_below(tmp_path / "dead")
    assert (again["attempt"], again["step"]) == (4, "ToChangeEvents")
    assert lines_below(tmp_path / "out") == []


def test_a_letter_without_a_step_and_one_before_whole_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="its step is unknown"):
        Replay([letter(MASKED, "")])
    with pytest.raises(UsageError, match="before MaterializeRows"):
        Replay([letter(NATIVE, "ToChangeEvents")], materialize_rows=True)
    Replay([letter(MASKED, "ToLines")], materialize_rows=True)


# The command: its files and its bookkeeping.

Started = list[tuple[str, list[DeadLetter]]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    dead, out = str(tmp_path / "dead"), str(tmp_path / "out")
    parameters = {**SHOP, "output": out, "format": "ydb", "dead_letters": dead}
    runner = {"checkpoint_dir": str(tmp_path / "checkpoint")}
    file.write_text(json.dumps({"template": "spanner-to-files", "parameters": parameters, "runner": runner}))
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The replays that were started: checkpoint folder and letters. All of them reach their end."""
    found: Started = []

    def build(configuration: Any, replay: Replay) -> None:
        letters = [each for elements in replay._elements.values() for each in elements]
        found.append((configuration.runner["checkpoint_dir"], letters))

    def run_pipeline(start: Callable[[], Any], *_: Any, **__: Any) -> ExitCode:
        start()
        return ExitCode.DONE

    monkeypatch.setattr(command, "build", build)
    monkeypatch.setattr(command, "begin_session", lambda *_: None)
    monkeypatch.setattr(command, "run_pipeline", run_pipeline)
    monkeypatch.setattr(
        command, "_is_done", lambda planned: planned.checkpoint in [folder for folder, _ in found]
    )
    return found


def refused(job: Path, name: str, *letters: DeadLetter) -> None:
    folder = job.parent / "dead" / "dead-letters"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(letter_fields(each)) + "\n" for each in letters))


def replay(job: Path) -> Any:
    return CliRunner().invoke(cli, ["dead-letters", "replay", str(job), "--progress", "none"])


def test_each_file_is_replayed_once(job: Path, started: Started) -> None:
    refused(job, "1.jsonl", letter(MASKED, "ToLines"))
    assert replay(job).exit_code == 0
    assert "no dead letters that can be replayed" in replay(job).output
    refused(job, "2.jsonl", letter(NATIVE, "ToChangeEvents"))
    assert replay(job).exit_code == 0
    folder = f"{job.parent}/checkpoint-replays"
    assert started == [(f"{folder}/000001", [MASKED]), (f"{folder}/000002", [NATIVE])]


def test_a_replay_that_did_not_reach_its_end_is_continued_with_its_own_files(
    job: Path, started: Started
) -> None:
    refused(job, "1.jsonl", letter(MASKED, "ToLines"))
    ReplayFolder(f"{job.parent}/checkpoint").plan(["dead-letters/1.jsonl"])  # and then the command was killed
    refused(job, "2.jsonl", letter(NATIVE, "ToChangeEvents"))
    assert replay(job).exit_code == 0
    assert [letters for _, letters in started] == [[MASKED], [NATIVE]]


def test_files_that_cannot_be_replayed_are_named_and_left_for_later(job: Path, started: Started) -> None:
    refused(job, "1.jsonl", letter(MASKED, ""))
    done = replay(job)
    assert (done.exit_code, started) == (0, [])
    assert "not replayed: dead-letters/1.jsonl: its step is unknown" in done.output
    assert list(ReplayFolder(f"{job.parent}/checkpoint").planned()) == []


def test_two_commands_cannot_plan_the_same_replay(tmp_path: Path) -> None:
    first, second = ReplayFolder(f"{tmp_path}/checkpoint"), ReplayFolder(f"{tmp_path}/checkpoint")
    assert first.plan(["b", "a"]).files == ("a", "b")
    assert [each.number for each in second.planned()] == [1]
    (tmp_path / "checkpoint-replays" / "000002.json").write_text("{}")
    with pytest.raises(FileExistsError):
        first._create("000002.json", b"")


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"format": "native"}, "has no dead_letters, or native lines"),
        ({"barrier_seconds": "1"}, "the records would come behind their barriers"),
    ],
)
def test_jobs_that_cannot_replay_are_refused(job: Path, parameters: dict[str, str], complaint: str) -> None:
    content = json.loads(job.read_text())
    content["parameters"] |= parameters
    job.write_text(json.dumps(content))
    done = replay(job)
    assert (done.exit_code, complaint in done.output) == (ExitCode.CONFIGURATION, True), done.output


@pytest.mark.slow
def test_a_record_of_a_source_is_decoded_in_a_process_that_has_not_imported_the_source() -> None:
    written = json.dumps(letter_fields(letter(NATIVE, "ToChangeEvents")))
    program = (
        "import json, sys; from penstock.transforms.dead_letters import letter_of; "
        "print(type(letter_of(json.loads(sys.argv[1])).element).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program, written], capture_output=True, text=True)
    assert done.stdout == "DataChangeRecord\n", done.stderr


class NotingSink(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """A sink that writes the versions of its events to a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = str(file)

    def selecting(self, selection: TableSelection) -> NotingSink:
        return self

    def expand(self, events: Any) -> Any:
        lines = events | beam.Map(lambda event: f"{event.key} {event.version.order}")
        return lines | beam.io.WriteToText(self._file, shard_name_template="")


def test_an_event_that_a_sink_refused_goes_to_the_sink_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_to_sink, "_target", lambda kind, given: NotingSink(tmp_path / "written"))
    with beam.Pipeline(FnApiRunner()) as pipeline:
        letters = [letter(MASKED, source_to_sink.WRITE)]
        choices = {**SHOP, "uri": str(tmp_path / "table")}
        source_to_sink.build(pipeline, "spanner", "delta", choices, replay=Replay(letters))
    assert (tmp_path / "written").read_text() == f"{{'Id': 7}} {MASKED.version.order}\n"
