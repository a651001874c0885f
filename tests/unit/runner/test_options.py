"""How the runner interprets its options before a pipeline starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.runner.options import PySparkOptions, problems
from penstock.runner.pipeline_runner import PySparkRunner, open_checkpoint
from penstock.runner.protocol.coordinator import Coordinator


def options(*flags: str) -> PySparkOptions:
    return PipelineOptions(list(flags)).view_as(PySparkOptions)


def test_a_checkpoint_folder_is_the_same_wherever_a_worker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = open_checkpoint(options("--checkpoint_dir=checkpoint"))
    assert checkpoint.folder == str(tmp_path / "checkpoint")
    assert checkpoint.state_folder.startswith("/")


@pytest.mark.parametrize(
    "url", ["s3://bucket/checkpoint?region=eu-west-1", "gs://bucket", "az://c/x", "file:///checkpoint"]
)
def test_a_checkpoint_folder_may_be_a_url(url: str) -> None:
    assert list(problems(options(f"--checkpoint_dir={url}"))) == []


@pytest.mark.parametrize(
    "url", ["hdfs://host/checkpoint", "s3://key:tiger@bucket/checkpoint", "s3://b?key=tiger"]
)
def test_a_url_that_is_not_supported_is_refused_without_its_secrets(url: str) -> None:
    (problem,) = problems(options(f"--checkpoint_dir={url}"))
    assert problem.startswith("--checkpoint_dir: ")
    assert "tiger" not in problem


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_epoch_seconds_that_are_not_positive_and_finite_are_refused(seconds: str) -> None:
    (problem,) = problems(options(f"--epoch_seconds={seconds}"))
    assert problem == f"--epoch_seconds={float(seconds)} must be above 0 and finite, for example 0.5"


def test_an_empty_checkpoint_dir_is_refused() -> None:
    (problem,) = problems(options("--checkpoint_dir="))
    assert (
        problem
        == "--checkpoint_dir is empty: pass a folder, or leave the option out to run without a checkpoint"
    )


def test_a_pipeline_resumes_once_its_checkpoint_has_an_epoch(tmp_path: Path) -> None:
    runner, given = PySparkRunner(), PipelineOptions([f"--checkpoint_dir={tmp_path / 'checkpoint'}"])
    assert not runner.resumes(PipelineOptions([]))
    assert not runner.resumes(given)
    assert not (tmp_path / "checkpoint").exists(), "the question creates nothing"
    coordinator = Coordinator(open_checkpoint(given.view_as(PySparkOptions)))
    record = coordinator.take_over()
    assert not runner.resumes(given), "a take-over reads nothing"
    coordinator.commit(coordinator.begin(), record.state)
    assert runner.resumes(given)


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--openlineage=", "--openlineage is empty: pass the name of the job, or leave the option out"),
        ("--openlineage_seconds=0.5", "--openlineage_seconds=0.5 must be at least 1 and finite"),
    ],
)
def test_reports_of_a_run_need_the_name_of_the_job_and_a_time_between_them(flag: str, problem: str) -> None:
    assert list(problems(options(flag))) == [problem]
