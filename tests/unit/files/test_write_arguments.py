"""What `WriteJsonLines` refuses, and when: before a pipeline starts."""

import errno
import os
import pickle

import apache_beam as beam
import pytest

from penstock.io.files import OutputError, WriteJsonLines, local


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards must be 1 or more, got 0"),
        ({"shards": 4}, "4 shards need a key function"),
        ({"roll_seconds": -1}, "roll_seconds must be 0"),
        ({"roll_bytes": 0}, "roll_bytes must be 1 or more"),
        ({"output": "gs://bucket/x"}, r"gs://bucket/x is a URL.*local"),
        ({"output": ""}, "the output is empty"),
        ({"shards": "2"}, "shards must be 1 or more, got '2'"),
        ({"table": None}, "table must be a name or a function"),
        ({"table": ""}, "table must be a name or a function"),
        ({"key": "id"}, "key must be a function of an element, got 'id'"),
        ({"format": "json"}, "format must be a function of an element, got 'json'"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        WriteJsonLines(**{"output": "out", "table": "t", **arguments})


def test_an_output_that_cannot_be_written_is_refused_when_the_pipeline_is_built(tmp_path):
    (tmp_path / "file").write_text("")
    pipeline = beam.Pipeline(runner="DirectRunner")
    lines = pipeline | beam.Create(["x"])
    with pytest.raises(OutputError, match=r"cannot write to the output .* Choose"):
        lines | WriteJsonLines(tmp_path / "file" / "out", table="t")


def test_building_a_pipeline_creates_no_folder(tmp_path):
    lines = beam.Pipeline(runner="DirectRunner") | beam.Create(["x"])
    lines | WriteJsonLines(tmp_path / "new" / "out", table="t")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_may_not_be_written_is_refused_when_the_pipeline_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(local.os, "access", lambda *_: False)
    lines = beam.Pipeline(runner="DirectRunner") | beam.Create(["x"])
    with pytest.raises(OutputError, match=r"Permission denied\. Give the user .* write access"):
        lines | WriteJsonLines(tmp_path / "out", table="t")


def test_the_check_before_a_start_finds_a_full_disk(tmp_path, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local.os, "mkdir", full)
    with pytest.raises(OutputError, match=r"No space left.*Free space"):
        WriteJsonLines(tmp_path / "o", table="t").check()


def test_a_relative_output_means_the_folder_in_which_the_pipeline_was_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write = WriteJsonLines("out", table="t")
    monkeypatch.chdir("/")
    write.check()
    assert (tmp_path / "out").is_dir()


def test_output_errors_survive_the_way_from_worker_to_driver():
    error = pickle.loads(pickle.dumps(OutputError("cannot stage x: remedy")))
    assert str(error) == "cannot stage x: remedy"
