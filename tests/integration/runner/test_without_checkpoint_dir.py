"""A stream without `--checkpoint_dir` runs with a temporary checkpoint, and says so."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.errors import UsageError
from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from tests.integration.runner.sources import AppendFn, CountFn


def _pipeline(spark: Any, folder: Path) -> beam.Pipeline:
    options = PipelineOptions(["--epoch_seconds=0.2", "--spark_parallelism=2"])
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=options)
    numbers = pipeline | beam.Create(["a"]) | beam.ParDo(CountFn(1000, 30, defer_every=10))
    _ = numbers | "Publish" >> PublishAfterCommit(AppendFn(str(folder)))
    return pipeline


@pytest.mark.spark
@pytest.mark.slow
def test_an_unbounded_source_runs_to_its_end_and_leaves_no_checkpoint(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    temporary, published = tmp_path / "temporary", tmp_path / "published"
    temporary.mkdir()
    published.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    result = _pipeline(spark, published).run()
    assert result.wait_until_finish(120_000) == "DONE"
    assert len(list(published.iterdir())) == 30
    assert list(temporary.glob("penstock-*")) == []
    assert "the next start begins from the start" in caplog.text


class _Cluster:
    master = "spark://head:7077"


def test_on_a_cluster_the_checkpoint_needs_a_shared_folder(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="spark://head:7077 needs --checkpoint_dir: a URL of an object store or a folder that",
    ):
        _pipeline(_Cluster(), tmp_path).run()
