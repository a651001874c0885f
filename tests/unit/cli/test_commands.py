"""The commands of `penstock`, up to the start of a pipeline."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import __version__
from penstock.cli import commands
from penstock.cli.commands import cli
from penstock.cli.common import build
from penstock.cli.configuration import Configuration
from penstock.cli.redaction import resume_command
from penstock.errors import UsageError
from penstock.launch.run import ExitCode
from penstock.templates.template import template_named

REQUIRED = ("project=my-project", "instance=main", "database=orders", "change_stream=All", "output=/tmp/out")
VALID = [word for pair in REQUIRED for word in ("--set", pair)] + ["--checkpoint-dir", "/tmp/c"]


def penstock(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env=environment)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Configuration]:
    """The configurations that `penstock run` would have started."""
    started: list[Configuration] = []

    def run_pipeline(build: Callable[[], Any], *_: Any, **__: Any) -> ExitCode:
        build()
        return ExitCode.DONE

    monkeypatch.setattr(commands, "run_pipeline", run_pipeline)
    monkeypatch.setattr(commands, "begin_session", lambda options, imports: None)
    monkeypatch.setattr(commands, "build", started.append)
    monkeypatch.setattr(commands, "standard_error_reporter", contextlib.nullcontext)
    return started


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    settings = "\n".join("  " + pair.replace("=", ": ") for pair in REQUIRED)
    runner = "  checkpoint_dir: /tmp/c\n  conf: [a=b]"
    file.write_text(f"template: spanner-to-files\nparameters:\n{settings}\nrunner:\n{runner}\n")
    return file


def test_run_begins_to_start_spark_before_it_imports_beam(
    launched: list[Configuration], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []

    def begin_session(options: Mapping[str, object], imports: Sequence[str]) -> None:
        begun.append((len(launched), options["conf"], imports))

    monkeypatch.setattr(commands, "begin_session", begin_session)
    assert penstock("run", str(job)).exit_code == ExitCode.DONE
    modules = ["penstock.pipelines.source_to_sink", "penstock.io.spanner.read", "penstock.io.files.options"]
    assert begun == [(0, ("a=b",), modules)]
    assert len(launched) == 1


def test_validate_starts_no_spark(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "begin_session", lambda *_: pytest.fail("Spark was started"))
    assert penstock("validate", str(job)).exit_code == ExitCode.DONE


def test_the_version_is_that_of_the_package() -> None:
    assert __version__ in penstock("--version").output


def test_list_shows_every_template_with_a_summary() -> None:
    listed = penstock("list").output
    assert re.search(r"^spanner-to-files +Spanner changes to JSON Lines files", listed, re.MULTILINE)
    assert re.search(r"^bigtable-to-delta +Bigtable changes to Delta tables", listed, re.MULTILINE)


def test_list_and_describe_print_json() -> None:
    names = [each["name"] for each in json.loads(penstock("list", "--json").output)]
    assert names == sorted(names)
    assert {"bigtable-to-files", "postgres-to-delta", "spanner-to-iceberg", "ydb-to-parquet"} <= set(names)
    described = json.loads(penstock("describe", "spanner-to-files", "--json").output)
    assert described["parameters"]["project"]["required"] is True


def test_the_example_of_describe_is_a_job_that_validates(tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(penstock("describe", "spanner-to-files", "--example").output)
    assert penstock("validate", str(file)).exit_code == ExitCode.DONE


def test_an_unknown_template_is_a_configuration_error() -> None:
    done = penstock("run", "spaner-to-files")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "did you mean 'spanner-to-files'?" in done.output


def test_a_template_without_values_names_every_required_one() -> None:
    done = penstock("validate", "spanner-to-files")
    assert done.exit_code == ExitCode.CONFIGURATION
    for name in ("project", "instance", "database", "change_stream", "output", "checkpoint_dir"):
        assert f"{name!r} is required" in done.output


def test_a_valid_configuration_is_shown_with_its_defaults() -> None:
    done = penstock("validate", "spanner-to-files", *VALID)
    assert done.exit_code == ExitCode.DONE
    assert "  poll_seconds: 0.2" in done.output


def test_validate_finds_what_only_the_transforms_refuse() -> None:
    times = ("start=2026-01-02T00:00:00Z", "end=2026-01-01T00:00:00Z")
    done = penstock("validate", "spanner-to-files", *VALID, *[f"--set={time}" for time in times])
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "is before start" in done.output


def test_validate_finds_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    given = [word.replace("=/tmp/out", f"={tmp_path}/out") for word in VALID]
    done = penstock("validate", "spanner-to-files", *given)
    assert done.exit_code == ExitCode.CONFIGURATION, done.exception
    assert "Choose an output that is a folder" in done.output


def test_a_checkpoint_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    done = penstock("validate", "spanner-to-files", *VALID, "--checkpoint-dir", f"{tmp_path}/c")
    assert (done.exit_code, "is not a folder" in done.output) == (ExitCode.CONFIGURATION, True)


def test_a_reference_is_replaced_before_a_value_is_checked(tmp_path: Path) -> None:
    given = [*VALID, "--set", "lineage_log=${env:ROOT}/lineage"]
    done = penstock("validate", "spanner-to-files", *given, ROOT=str(tmp_path))
    assert f"lineage_log: {tmp_path}/lineage" in done.output
    assert (
        "the environment variable ROOT is not set" in penstock("validate", "spanner-to-files", *given).output
    )


@pytest.mark.parametrize(
    "dsn",
    [
        "${env:DSN}",
        "host=db dbname=shop password=${env:DSN}",
        "dbname=shop password=${vault:secret/data/shop#word}",
    ],
)
def test_validate_and_plan_need_no_secret_of_source_or_sink(dsn: str) -> None:
    slot = [
        f"--set={each}" for each in (f"dsn={dsn}", f"target_dsn={dsn}", "publication=shop", "slot=penstock")
    ]
    for command in ("validate", "plan"):
        done = penstock(command, "postgres-to-postgresql", *slot, "--checkpoint-dir", "/tmp/c")
        assert done.exit_code == ExitCode.DONE, done.output


def test_the_secret_of_a_source_is_read_when_the_pipeline_is_built(
    launched: list[Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", "postgres-to-files", "--checkpoint-dir", "/tmp/c", "--set", "output=/tmp/out"]
    arguments += [
        "--set",
        "dsn=dbname=shop host=${env:NO_SUCH_HOST}",
        "--set",
        "publication=shop",
        "--set",
        "slot=penstock",
    ]
    assert penstock(*arguments).exit_code == ExitCode.DONE
    with pytest.raises(UsageError, match="NO_SUCH_HOST is not set"):
        build(launched[0])
    monkeypatch.setenv("NO_SUCH_HOST", "db.example.org")
    build(launched[0])


def test_a_secret_of_a_secret_manager_is_refused_where_outputs_show_it() -> None:
    done = penstock(
        "validate", "spanner-to-files", *VALID, "--set", "lineage_log=${vault:secret/data/shop#log}"
    )
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "'lineage_log': ${vault:secret/data/shop#log} names a secret, and outputs show" in done.output


def test_validate_creates_no_folder(tmp_path: Path) -> None:
    folders = [
        word.replace("=/tmp/out", f"={tmp_path}/out").replace("/tmp/c", f"{tmp_path}/c") for word in VALID
    ]
    assert penstock("validate", "spanner-to-files", *folders).exit_code == ExitCode.DONE
    assert list(tmp_path.iterdir()) == []


def test_a_job_file_without_end_is_refused() -> None:
    done = penstock("validate", "/dev/zero")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "is longer than 65,536 characters" in done.output


def test_an_output_inside_the_checkpoint_folder_is_a_configuration_error(tmp_path: Path) -> None:
    folders = [
        word.replace("=/tmp/out", f"={tmp_path}/c/out").replace("/tmp/c", f"{tmp_path}/c") for word in VALID
    ]
    done = penstock("validate", "spanner-to-files", *folders)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert f"output {tmp_path}/c/out is inside checkpoint_dir {tmp_path}/c" in done.output


def test_problems_as_json_have_their_position(job: Path) -> None:
    job.write_text(job.read_text() + "  epoch_seconds: soon\n")
    done = penstock("validate", str(job), "--json")
    assert done.exit_code == ExitCode.CONFIGURATION
    (problem,) = json.loads(done.output)["problems"]
    assert problem["where"] == f"{job}:11:18"


def test_a_missing_job_file_is_reported(tmp_path: Path) -> None:
    done = penstock("run", str(tmp_path / "job.yaml"))
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "cannot be read: No such file or directory" in done.output


def test_flags_win_over_set_the_environment_the_file_and_defaults(
    job: Path, launched: list[Configuration]
) -> None:
    arguments = ("--set", "database=flagged", "--epoch-seconds", "3")
    done = penstock(
        "run",
        str(job),
        *arguments,
        PENSTOCK_DATABASE="from-env",
        PENSTOCK_INSTANCE="from-env",
        PENSTOCK_EPOCH_SECONDS="9",
        PENSTOCK_EPOCH_RETRIES="8",
    )
    assert done.exit_code == ExitCode.DONE, done.output
    (configuration,) = launched
    parameters, runner = configuration.parameters, configuration.runner
    assert (parameters["database"], parameters["instance"]) == ("flagged", "from-env")
    assert (parameters["project"], parameters["poll_seconds"]) == ("my-project", 0.2)
    assert (runner["epoch_seconds"], runner["epoch_retries"], runner["conf"]) == (3.0, 8, ("a=b",))


def test_commas_do_not_separate_values(launched: list[Configuration]) -> None:
    done = penstock("run", "spanner-to-files", *VALID, "--set", "output=/tmp/a,b", "--conf", "x=1,2")
    assert done.exit_code == ExitCode.CONFIGURATION
    done = penstock("run", "spanner-to-files", *VALID[:-4], *VALID[-2:], "--set", "output=/tmp/a,b=c")
    assert done.exit_code == ExitCode.DONE, done.output
    assert launched[0].parameters["output"] == "/tmp/a,b=c"


@pytest.mark.parametrize("setting", ["fresh: true", "drop_state: [Old]", "take_over: true"])
def test_options_for_one_start_only_are_refused_in_a_job_file(job: Path, setting: str) -> None:
    job.write_text(job.read_text() + f"  {setting}\n")
    done = penstock("run", str(job))
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "is valid for one start only, so a job file may not contain it; pass --" in done.output


def test_options_for_one_start_only_are_not_taken_from_the_environment(
    job: Path, launched: list[Configuration]
) -> None:
    assert penstock("run", str(job), PENSTOCK_FRESH="true").exit_code == ExitCode.DONE
    assert launched[0].runner["fresh"] is False


def test_the_exit_code_tells_how_the_pipeline_ended(monkeypatch: pytest.MonkeyPatch, job: Path) -> None:
    monkeypatch.setattr(commands, "run_pipeline", lambda *_, **__: ExitCode.FAILED)
    monkeypatch.setattr(commands, "standard_error_reporter", contextlib.nullcontext)
    assert penstock("run", str(job)).exit_code == 4


def test_an_unknown_flag_is_a_usage_error() -> None:
    assert penstock("run", "spanner-to-files", "--spark-masterr", "x").exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["/v/bin/penstock", "run", "job.yaml", "--fresh"], "/v/bin/penstock run job.yaml"),
        (["penstock", "run", "job.yaml", "--take-over"], "penstock run job.yaml"),
        (["penstock", "run", "j", "--drop-state", "A B", "--set", "a=b c"], "penstock run j --set 'a=b c'"),
        (["penstock", "run", "j", "--drop-state=A", "--master", "x"], "penstock run j --master x"),
        (["/somewhere/cli.py", "run", "j"], "penstock run j"),
    ],
)
def test_the_command_that_continues_has_no_options_for_one_start_only(given: list[str], kept: str) -> None:
    assert resume_command(given) == kept


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--set", "password=tiger", "--set", "project=p"], "--set 'password=(hidden)' --set project=p"),
        (["--set=password=tiger"], "'--set=password=(hidden)'"),
        (
            ["--conf", "spark.hadoop.fs.s3a.secret.key=tiger"],
            "--conf 'spark.hadoop.fs.s3a.secret.key=(hidden)'",
        ),
        (["--conf=spark.ssl.keyPassword=tiger"], "'--conf=spark.ssl.keyPassword=(hidden)'"),
        (["--conf", "spark.executor.memory=4g"], "--conf spark.executor.memory=4g"),
    ],
)
def test_the_command_that_continues_shows_no_secret(given: list[str], shown: str) -> None:
    assert resume_command(["penstock", "run", "j", *given], {"password"}) == f"penstock run j {shown}"


@pytest.mark.parametrize("style", [(), ("--json",)])
def test_a_valid_configuration_is_shown_without_the_secrets_of_spark(style: tuple[str, ...]) -> None:
    conf = ("--conf", "spark.ssl.keyPassword=tiger", "--conf", "spark.executor.memory=4g")
    done = penstock("validate", "spanner-to-files", *VALID, *conf, *style)
    assert done.exit_code == ExitCode.DONE, done.output
    assert "tiger" not in done.output
    assert "spark.executor.memory=4g" in done.output


@pytest.mark.parametrize("template", ["spanner-to-files", "bigtable-to-files"])
@pytest.mark.parametrize(
    "output", ["hdfs://host/out", "s3://key:tiger@bucket/out", "s3://bucket/out?key=tiger"]
)
def test_urls_that_are_not_supported_are_refused_without_their_secrets(template: str, output: str) -> None:
    names = [
        each
        for each in template_named(template).parameters
        if template_named(template).parameters[each].required
    ]
    needed = [f"--set={name}=abcdefg" for name in names if name != "output"]
    done = penstock(
        "validate", template, *needed, f"--set=output={output}", "--checkpoint-dir", "gs://bucket/checkpoint"
    )
    assert done.exit_code == ExitCode.CONFIGURATION, done.output
    assert "out has" in done.output or "out must name a bucket" in done.output
    assert "tiger" not in done.output


FORMATTED = [
    *("--set", "project=my-project", "--set", "instance=main", "--set", "database=shop"),
    *("--set", "change_stream=Orders", "--set", "output=/tmp/out", "--checkpoint-dir", "/tmp/checkpoint"),
    *("--set", "format=debezium", "--set", "debezium.schemas_enable=true"),
]


def test_validate_shows_the_options_of_a_format_and_does_not_need_its_secret() -> None:
    mask = ["--set", "mask_columns.Email=hash", "--set", "mask_key=${env:PENSTOCK_TEST_NO_SUCH_SECRET}"]
    shown = CliRunner().invoke(cli, ["validate", "spanner-to-files", *FORMATTED, *mask])
    assert shown.exit_code == 0, shown.output
    assert "debezium.schemas_enable: true" in shown.output
    assert "mask_key: ${env:PENSTOCK_TEST_NO_SUCH_SECRET}" in shown.output


def test_describe_shows_the_options_of_each_format_from_its_class() -> None:
    text = CliRunner().invoke(cli, ["describe", "spanner-to-files"]).output
    assert "debezium.decimal_handling_mode (string, default precise, one of precise double string)" in text
    assert "Whether each key and value contains its Connect schema" in text
