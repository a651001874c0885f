"""`init`, `plan`, `validate --online`, `run --until` and `--drain-after`, completion, flex metadata."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import preflight
from penstock.cli import commands
from penstock.cli.commands import cli
from penstock.cli.configuration import Configuration
from penstock.cli.graph import Graph, as_svg, as_text
from penstock.cli.redaction import resume_command, secret_names
from penstock.errors import SetupError
from penstock.launch.run import ExitCode
from penstock.templates.template import template_named

REQUIRED = ("project=my-project", "instance=main", "database=orders", "change_stream=All", "output=/tmp/out")
SETS = [word for pair in REQUIRED for word in ("--set", pair)]
VALID = [*SETS, "--checkpoint-dir", "/tmp/c"]


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_init_writes_a_job_that_validates_and_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    more = ["--set", "tables=A", "--set", "tables=it's", "--set", "format=ydb", "--set", "ydb.mode=UPDATES"]
    assert penstock("init", "spanner-to-files", *VALID, *more, "-o", str(file)).exit_code == 0
    shown = json.loads(penstock("validate", str(file), "--json").output)
    assert shown["parameters"]["tables"] == ["A", "it's"]
    assert shown["parameters"]["ydb.mode"] == "UPDATES"
    assert shown["runner"]["checkpoint_dir"] == "/tmp/c"
    again = penstock("init", "spanner-to-files", "-o", str(file))
    assert (again.exit_code, "exists already" in again.output) == (ExitCode.CONFIGURATION, True)
    assert "tabels" in penstock("init", "spanner-to-files", "--set", "tabels=A").output


def test_plan_shows_steps_guarantees_and_values_without_secrets(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    secret = ["--set", "format=debezium", "--set", "debezium.converter=avro"]
    secret += ["--set", "debezium.registry_url=mock://plan", "--set", "debezium.registry_login=${env:LOGIN}"]
    done = penstock("plan", "spanner-to-files", *VALID, *secret, "--svg", str(picture))
    assert done.exit_code == 0, done.output
    assert "WriteFiles/Files  <- ToLines/ToLines" in done.output
    assert "exactly once, even after kill -9" in done.output
    assert "dead_letters= lets it pass" in done.output
    assert "debezium.registry_login: ${env:LOGIN}" in done.output
    assert "conf" not in done.output
    boxes = ElementTree.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(boxes)) == 4
    as_json = json.loads(penstock("plan", "spanner-to-files", *VALID, "--json").output)
    assert ["ReadChangeStream/Read", "ToLines"] not in as_json["edges"]
    assert as_json["parameters"]["shards"] == 1


def test_a_plain_secret_in_a_format_is_hidden() -> None:
    given = ["--set", "format=debezium", "--set", "debezium.registry_login=me:secret"]
    done = penstock("plan", "spanner-to-files", *VALID, *given)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "me:secret" not in done.output


def test_the_command_that_continues_shows_no_secret_of_a_format() -> None:
    secrets = secret_names(template_named("spanner-to-files").parameters)
    typed = ["penstock", "run", "spanner-to-files", "--set", "debezium.registry_login=me:secret"]
    assert "secret" not in resume_command(typed, secrets)


def test_a_step_is_right_of_the_steps_that_feed_it() -> None:
    graph = Graph(("read", "left", "right", "join"), (("read", "left"), ("left", "join"), ("right", "join")))
    assert graph.levels() == {"read": 0, "left": 1, "right": 0, "join": 2}
    assert as_text(graph).splitlines()[-1] == "    join  <- left, right"
    assert as_svg(Graph(("a<b",), ())).count("a&lt;b") == 2


@pytest.mark.parametrize(("options", "code"), [([], ExitCode.DONE), (["--online"], ExitCode.PREFLIGHT)])
def test_only_an_online_validation_asks_the_services(
    options: list[str], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pipeline: Any, *, resuming: bool = False) -> None:
        raise SetupError("there is no change stream All")

    monkeypatch.setattr(preflight, "preflight", refuse)
    done = penstock("validate", "spanner-to-files", *VALID, *options)
    assert done.exit_code == code
    assert ("not ready: there is no change stream All" in done.output) == bool(options)
    shown = json.loads(penstock("validate", "spanner-to-files", *VALID, *options, "--json").output)
    assert shown["valid"] == (not options)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Configuration, float | None]]:
    """What `penstock run` would start, and after how many seconds it would drain it."""
    found: list[tuple[Configuration, float | None]] = []

    def run_pipeline(build: Any, *_: Any, drain_after_seconds: float | None, **__: Any) -> ExitCode:
        found.append((build(), drain_after_seconds))
        return ExitCode.DONE

    monkeypatch.setattr(commands, "run_pipeline", run_pipeline)
    monkeypatch.setattr(commands, "start", lambda configuration: configuration)
    return found


def test_until_is_the_end_and_drain_after_is_a_span(started: list[Any]) -> None:
    times = ["--until", "2026-02-01T00:00:00Z", "--drain-after", "10m"]
    assert penstock("run", "spanner-to-files", *VALID, *times, "--progress", "none").exit_code == 0
    ((configuration, seconds),) = started
    assert (configuration.parameters["end"], seconds) == ("2026-02-01T00:00:00Z", 600.0)
    wrong = penstock("run", "spanner-to-files", *VALID, "--drain-after", "ten")
    assert "write it as 90s, 10m or 2h" in wrong.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion(shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in penstock("completion", shell).output
    words = {"COMP_WORDS": "penstock describe span", "COMP_CWORD": "2", "_PENSTOCK_COMPLETE": "bash_complete"}
    assert "spanner-to-files" in CliRunner().invoke(cli, [], env=words, prog_name="penstock").output


def test_flex_metadata_has_a_parameter_for_each_option_of_a_format() -> None:
    metadata = json.loads(penstock("describe", "spanner-to-files", "--flex-metadata").output)
    parameters = {each["name"]: each for each in metadata["parameters"]}
    assert (metadata["streaming"], parameters["project"]["isOptional"]) == (True, False)
    assert parameters["project"]["regexes"] == ["^[a-z][a-z0-9.:-]{4,}[a-z0-9]$"]
    assert parameters["debezium.schemas_enable"]["paramType"] == "BOOLEAN"
    assert parameters["debezium.schemas_enable"]["parentName"] == "format"
    assert parameters["debezium.schemas_enable"]["parentTriggerValues"] == ["debezium"]
    assert "parentName" not in parameters["project"]
    assert parameters["ydb.mode"]["enumOptions"][0] == {"value": "KEYS_ONLY", "label": "KEYS_ONLY"}
    assert all(each["helpText"] for each in parameters.values())


def test_a_bad_until_is_reported_as_until() -> None:
    for extra, told in (
        (["--until", "25:00"], "--until: "),
        (["--until", "2026-02-01T00:00:00Z", "--set", "end=2026-02-01T00:00:00Z"], "give one of them"),
    ):
        done = penstock("run", "spanner-to-files", *VALID, *extra)
        assert done.exit_code == ExitCode.CONFIGURATION
        assert told in done.output
        assert "--set end" not in done.output


def completed(*words: str) -> list[str]:
    """What the completion script of bash gets for the last of the words."""
    variables = {
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["penstock", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(cli, [], env=variables, prog_name="penstock").output.splitlines()


def test_the_shell_completes_templates_and_job_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("run", "spanner-to-f") == ["plain,spanner-to-files"]
    assert completed("validate", "sho") == ["plain,shop.yaml"]
    assert completed("plan", "/data/jo") == ["file,/data/jo"]
    assert completed("status", "che") == ["file,che"]


def test_a_job_file_may_be_json(tmp_path: Path) -> None:
    parameters = dict(pair.split("=", 1) for pair in SETS[1::2])
    job = tmp_path / "job.json"
    content = {
        "template": "spanner-to-files",
        "parameters": parameters,
        "runner": {"checkpoint_dir": f"{tmp_path}/checkpoint"},
    }
    job.write_text(json.dumps(content, indent=2))
    done = penstock("validate", str(job))
    assert (done.exit_code, done.output.splitlines()[0]) == (ExitCode.DONE, "valid: spanner-to-files")
    job.write_text(json.dumps({**content, "paramters": {}}))
    assert f"{job}:1:" in penstock("validate", str(job)).output
    assert "there is no checkpoint in" in penstock("status", str(job)).output
