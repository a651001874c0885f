"""What the runner refuses before it starts Spark is part of the checks before a start."""

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.preflight import preflight
from penstock.runner import PySparkRunner
from penstock.runner.protocol.errors import CheckpointError


def pipeline(folder: str, *more: str) -> beam.Pipeline:
    options = PipelineOptions([f"--checkpoint_dir={folder}", *more])
    return beam.Pipeline(runner=PySparkRunner(), options=options)


def test_a_checkpoint_folder_that_cannot_be_made_is_refused_before_the_start() -> None:
    with pytest.raises(
        CheckpointError, match="cannot use /proc/c9 for checkpoints: .*nothing can be created in /proc"
    ):
        preflight(pipeline("/proc/c9"))


def test_a_check_makes_no_checkpoint_folder(tmp_path: Path) -> None:
    preflight(pipeline(str(tmp_path / "a" / "b")))
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_does_not_hide_other_problems(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    class Refused(beam.PTransform):
        def check(self) -> None:
            raise UsageError("no such stream")

        def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
            return begin | beam.Create([1])

    made = pipeline(str(tmp_path))
    _ = made | Refused()
    with pytest.raises(Exception, match="(?s)2 problems.*no checkpoint|not a checkpoint.*no such stream"):
        preflight(made)
