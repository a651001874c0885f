"""Every command in the `sh` blocks of docs/command-line.md runs; `/data/` is a temporary folder."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import checks, commands, common, job_views
from penstock.cli.commands import cli
from penstock.event import Kind, Op
from penstock.event.coder import encode_event
from penstock.launch.run import ExitCode
from penstock.runner.protocol import Coordinator, EpochState, Residual
from penstock.runner.store import Checkpoint
from penstock.transforms.dead_letters import dead_letter, letter_fields
from tests.support.played_jobs import job_file, play
from tests.unit.formats.events import event_of, schema_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
PENDING = EpochState(residuals=(Residual("Read", "id", b"", 0, 0),))
LINEAGE = {"time": "2026-01-31T12:00:00.000000000Z", "event": "announced", "partition": "a"}
CHANGE = event_of(
    schema_of({"Id": Kind.INT64}, Email=Kind.STRING), Op.CREATE, after={"Id": 7, "Email": "a@b"}
)


def documented() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a checkpoint, a lineage log and a dead letter; pipelines that are started end at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "run_pipeline", lambda *_, **__: ExitCode.DONE)
    coordinator = Coordinator(Checkpoint.open(f"{tmp_path}/checkpoints/orders"))
    coordinator.take_over()
    coordinator.commit(coordinator.begin(), PENDING)
    letter = dead_letter((CHANGE, (ValueError, "no", ())), attempt=2)
    write(tmp_path / "refused", letter_fields(letter))
    write(tmp_path / "lineage", LINEAGE)
    (tmp_path / "jobs").mkdir()
    job_file(tmp_path / "jobs" / "shop.yaml", tmp_path / "checkpoints" / "shop")
    play(tmp_path / "checkpoints" / "shop", last={"residuals": ()})
    return tmp_path


def write(folder: Path, content: dict[str, Any]) -> None:
    inner = folder / "table" / "2026-01-31T12"
    inner.mkdir(parents=True)
    (inner / "1.jsonl").write_text(json.dumps(content) + "\n")


def penstock(*arguments: str) -> Any:
    return CliRunner().invoke(cli, list(arguments))


def test_every_documented_command_runs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Built once for each job, because that takes longer than all commands together.
    built: dict[str, Any] = {}

    def build(configuration: Any, **_: Any) -> Any:
        folder = configuration.runner["checkpoint_dir"]
        built[folder] = built.get(folder) or common.build(configuration)
        return built[folder]

    monkeypatch.setattr(commands, "build", build)
    monkeypatch.setattr(checks, "build", build)
    monkeypatch.setattr(job_views, "build", build)
    # No driver runs that could answer.
    monkeypatch.setattr("penstock.cli.jobs.ask", lambda job, what, wait, say: ExitCode.DONE)
    commands_run = documented()
    assert len(commands_run) >= 10
    for line in commands_run:
        program, *arguments = shlex.split(line.replace("/data/", f"{data}/"))
        done = penstock(*arguments)
        assert (program, done.exit_code) == ("penstock", 0), f"{line}\n{done.output}"
    assert (data / "plan.svg").read_text().startswith("<svg")
    assert "<svg" in (data / "status.html").read_text()


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    for name in cli.commands:
        assert f"penstock {name}" in page, name


def test_dead_letters_are_counted_and_shown_without_values(data: Path) -> None:
    folder = str(data / "refused")
    assert json.loads(penstock("dead-letters", "ls", folder, "--json").output) == [
        {"letters": 1, "table": "Orders", "attempt": 2, "reason": "ValueError"}
    ]
    shown = penstock("dead-letters", "show", folder).output
    assert "a@b" not in shown
    assert b64encode(encode_event(CHANGE)).decode() not in shown
    assert json.loads(shown)["file"] == "table/2026-01-31T12/1.jsonl"
    change = json.loads(penstock("dead-letters", "show", folder, "--values").output)["change"]
    assert (change["op"], change["after"]) == ("CREATE", {"Id": 7, "Email": "a@b"})
    other = penstock("dead-letters", "ls", str(data / "lineage"))
    assert (other.exit_code, "is no dead letter" in other.output) == (ExitCode.CONFIGURATION, True)
    assert "there is no folder" in penstock("dead-letters", "ls", str(data / "nothing")).output
