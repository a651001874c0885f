"""What `WriteToJsonLines` refuses, and when: before a pipeline starts."""

import errno
import os
import pickle

import apache_beam as beam
import pytest
from apache_beam.transforms.display import DisplayData

from penstock.errors import PenstockError
from penstock.io.files import OutputError, PublishedFile, WriteToJsonLines
from penstock.io.staging import local
from penstock.preflight import preflight


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 0}, "shards must be 1 or more, got 0"),
        ({"shards": 4}, "4 shards need a key function"),
        ({"roll_seconds": -1}, "roll_seconds must be 0"),
        ({"roll_bytes": 0}, "roll_bytes must be 1 or more"),
        ({"output": "hdfs://host/x"}, r"hdfs://host/x has the scheme hdfs://, which is not supported"),
        ({"output": ""}, "the location is empty"),
        ({"shards": "2"}, "shards must be 1 or more, got '2'"),
        ({"table": None}, "table must be a name or a function"),
        ({"table": ""}, "table must be a name or a function"),
        ({"key": "id"}, "key must be a function of an element, got 'id'"),
        ({"format": "json"}, "format must be a function of an element, got 'json'"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        WriteToJsonLines(**{"output": "out", "table": "t", **arguments})


def test_an_output_that_cannot_be_written_is_refused_when_the_pipeline_is_built(tmp_path):
    (tmp_path / "file").write_text("")
    lines = beam.Pipeline(runner="DirectRunner") | beam.Create(["x"])
    with pytest.raises(OutputError, match=r"cannot write to the output .* Choose"):
        lines | WriteToJsonLines(tmp_path / "file" / "out", table="t")


def test_an_output_that_may_not_be_written_is_refused_when_the_pipeline_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(local.os, "access", lambda *_: False)
    lines = beam.Pipeline(runner="DirectRunner") | beam.Create(["x"])
    with pytest.raises(OutputError, match=r"Permission denied\. Give the user .* write access"):
        lines | WriteToJsonLines(tmp_path / "out", table="t")


def test_the_check_before_a_start_creates_the_output(tmp_path):
    pipeline = beam.Pipeline(runner="DirectRunner")
    pipeline | beam.Create(["x"]) | WriteToJsonLines(tmp_path / "new" / "out", table="t")
    preflight(pipeline)
    assert list((tmp_path / "new" / "out").iterdir()) == []


def test_the_check_before_a_start_finds_a_full_disk(tmp_path, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pipeline = beam.Pipeline(runner="DirectRunner")
    pipeline | beam.Create(["x"]) | WriteToJsonLines(tmp_path / "o", table="t")
    monkeypatch.setattr(local.os, "mkdir", full)
    with pytest.raises(OutputError, match=r"No space left.*Free space"):
        preflight(pipeline)


def test_building_a_pipeline_creates_nothing(tmp_path):
    beam.Pipeline(runner="DirectRunner") | beam.Create(["x"]) | WriteToJsonLines(tmp_path / "o", table="t")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_output_is_resolved_where_the_pipeline_is_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write = WriteToJsonLines("out", table="t")
    monkeypatch.chdir("/")
    assert write.display_data()["output"] == str(tmp_path / "out")


def test_the_output_is_typed_as_published_files(tmp_path):
    published = beam.Pipeline() | beam.Create(["x"]) | WriteToJsonLines(tmp_path, table="t")
    assert published.element_type == PublishedFile


def test_the_display_data_shows_every_argument_except_functions(tmp_path):
    write = WriteToJsonLines(tmp_path, table="t", roll_seconds=2.5, in_event_time_order=True)
    shown = {item.key: item.value for item in DisplayData.create_from(write).items}
    assert shown == {
        "output": str(tmp_path),
        "table": "t",
        "shards": 1,
        "roll_seconds": 2.5,
        "roll_bytes": 64 * 2**20,
        "in_event_time_order": True,
    }


def test_output_errors_survive_the_transfer_from_worker_to_driver():
    error = pickle.loads(pickle.dumps(OutputError("cannot stage x: remedy")))
    assert isinstance(error, PenstockError)
    assert str(error) == "cannot stage x: remedy"
