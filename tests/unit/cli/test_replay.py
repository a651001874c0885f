"""`penstock dead-letters replay`: which letters enter the pipeline again, where, and how often."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from click.testing import CliRunner

from penstock.cli import dead_letters as command
from penstock.cli.commands import cli
from penstock.errors import UsageError
from penstock.event import Kind, Op, Source, Transaction
from penstock.io.postgres.record import ChangeKind, LogRecord, Table
from penstock.io.spanner.coder import DataChangeRecordCoder  # noqa: F401  registers the coder of the letters
from penstock.io.spanner.record import Mod
from penstock.launch.run import ExitCode
from penstock.pipelines import source_to_sink
from penstock.pipelines.letter_selection import LetterSelection
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
OTHER = event_of(SCHEMA, Op.CREATE, after={"Id": 7, "Name": "B"}, source=Source("spanner", table="Others"))
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


LEFT_OUT: list[dict[str, Any]] = [
    {"without_tables": ["shop.o*"]},
    {"tables": ["others"]},
    {"operations": ["update", "DELETE"]},
    {"mod_types": ["UPDATE"]},
]


def test_letters_of_what_the_job_leaves_out_are_not_written_to_files(tmp_path: Path) -> None:
    letters = [letter(NATIVE, "ToChangeEvents"), letter(MASKED, "ToLines"), letter(OTHER, "ToLines")]
    choices: dict[str, Any] = {"format": "ydb", "without_tables": ["Orders", NATIVE.table_name]}
    with beam.Pipeline(FnApiRunner()) as pipeline:
        replay = Replay(letters, selection=LetterSelection.of(choices))
        spanner_to_files(
            pipeline,
            **SHOP,
            **choices,
            output=str(tmp_path / "out"),
            dead_letters=str(tmp_path / "dead"),
            replay=replay,
        )
    assert (len(lines_below(tmp_path / "out")), replay.left_out) == (1, 2)
    assert not lines_below(tmp_path / "dead")


@pytest.mark.parametrize("choices", LEFT_OUT, ids=str)
def test_an_event_is_selected_as_its_source_selects_it(choices: dict[str, Any]) -> None:
    selection = LetterSelection.of(choices)
    source = msgspec.structs.replace(MASKED.source, schema="shop", table="orders")
    assert not selection.has(msgspec.structs.replace(MASKED, source=source))
    assert LetterSelection.of({}).has(MASKED)


def test_tags_and_rows_of_snapshots_are_selected_as_their_source_selects_them() -> None:
    tagged = msgspec.structs.replace(MASKED, transaction=Transaction("7", tag="backfill"))
    for parameter in ("exclude_transaction_tags", "without_tags"):
        assert not LetterSelection.of({parameter: ["backfill"]}).has(tagged)
        assert LetterSelection.of({parameter: ["other"]}).has(tagged)
    assert LetterSelection.of({"mod_types": ["DELETE"]}).has(msgspec.structs.replace(MASKED, op=Op.READ))
    # A message of PostgreSQL belongs to no table.
    message = msgspec.structs.replace(MASKED, source=Source("postgresql"))
    assert LetterSelection.of({"tables": ["orders"]}).has(message)


def test_records_of_sources_are_selected_before_they_are_converted() -> None:
    assert LetterSelection.of({"tables": [NATIVE.table_name]}).has(NATIVE)
    for choices in ({"without_tables": [NATIVE.table_name]}, {"mod_types": ["DELETE"]}):
        assert not LetterSelection.of(choices).has(NATIVE)
    table = Table(1, "sales", "orders", "DEFAULT", ())
    row = LogRecord(ChangeKind.INSERT, 1, None, 1, 1, True, table)
    assert LetterSelection.of({"tables": ["sales.*"]}).has(row)
    assert not LetterSelection.of({"without_tables": ["orders"]}).has(row)
    assert LetterSelection.of({"tables": ["orders"]}).has(msgspec.structs.replace(row, table=None))


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


def test_letters_of_what_the_job_leaves_out_are_not_written_to_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_to_sink, "_target", lambda kind, given: NotingSink(tmp_path / "written"))
    choices: dict[str, Any] = {**SHOP, "uri": str(tmp_path / "table"), "without_tables": ["Orders"]}
    letters = [letter(MASKED, source_to_sink.WRITE), letter(OTHER, source_to_sink.WRITE)]
    with beam.Pipeline(FnApiRunner()) as pipeline:
        replay = Replay(letters, selection=LetterSelection.of(choices))
        source_to_sink.build(pipeline, "spanner", "delta", choices, replay=replay)
    assert (tmp_path / "written").read_text() == f"{{'Id': 7}} {OTHER.version.order}\n"


def test_the_command_says_how_many_letters_the_job_leaves_out(job: Path, started: Started) -> None:
    content = json.loads(job.read_text())
    content["parameters"]["without_tables"] = [MASKED.source.table]
    job.write_text(json.dumps(content))
    refused(job, "1.jsonl", letter(MASKED, "ToLines"), letter(OTHER, "ToLines"))
    assert "not written: 1 letter of a change that the job leaves out now" in replay(job).output
