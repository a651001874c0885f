"""The output folder and the checkpoint folder are separate."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.launch.folders import any_folder_conflict, folder_conflict


@pytest.mark.parametrize(
    ("output", "checkpoint_dir", "conflict"),
    [
        ("data", "data", "output and checkpoint_dir are the same folder"),
        ("data", "./x/../data/", "output and checkpoint_dir are the same folder"),
        ("data/out", "data", "output {root}/data/out is inside checkpoint_dir {root}/data"),
        ("data", "data/checkpoint", "checkpoint_dir {root}/data/checkpoint is inside output {root}/data"),
        ("/", "data", "checkpoint_dir {root}/data is inside output /"),
    ],
)
def test_nested_folders_are_refused(
    output: str, checkpoint_dir: str, conflict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = folder_conflict(output, checkpoint_dir)
    assert found is not None
    assert found.startswith(conflict.format(root=tmp_path))
    assert found.endswith("choose two separate folders")


def test_a_link_to_the_other_folder_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "link").symlink_to("checkpoint")
    assert folder_conflict(str(tmp_path / "link" / "out"), str(tmp_path / "checkpoint")) is not None


@pytest.mark.parametrize(
    ("output", "checkpoint_dir"), [("data/out", "data/checkpoint"), ("a", "ab"), ("ab", "a")]
)
def test_sibling_folders_are_accepted(output: str, checkpoint_dir: str) -> None:
    assert folder_conflict(output, checkpoint_dir) is None


def test_every_pair_of_folders_must_be_separate() -> None:
    values = {
        "output": "/data/out",
        "dead_letters": "/data/dead",
        "checkpoint_dir": "/data/ck",
        "project": "/data",
    }
    assert any_folder_conflict(values) is None
    assert any_folder_conflict({"output": "/data/out"}) is None
    assert any_folder_conflict(values | {"dead_letters": "/data/out/dead"}) == (
        "dead_letters /data/out/dead is inside output /data/out; choose two separate folders"
    )
    assert any_folder_conflict(values | {"dead_letters": "/data/ck"}) == (
        "dead_letters and checkpoint_dir are the same folder, /data/ck; choose two separate folders"
    )


@pytest.mark.parametrize(
    ("output", "checkpoint", "conflict"),
    [
        ("s3://b/x", "s3://b/x?region=r", "the same folder"),
        ("s3://b/x/out", "s3a://b/x", "is inside checkpoint_dir s3://b/x"),
        ("gs://b", "gs://b/checkpoint", "is inside output gs://b"),
        ("s3://key:tiger@b/x", "/data", "must name a bucket"),
    ],
)
def test_urls_are_compared_without_their_options(output, checkpoint, conflict):
    found = folder_conflict(output, checkpoint)
    assert conflict in found
    assert "tiger" not in found


@pytest.mark.parametrize(
    ("output", "checkpoint"), [("s3://b/xy", "s3://b/x"), ("s3://b/x", "gs://b/x"), ("s3://b/x", "/data")]
)
def test_separate_urls_do_not_conflict(output, checkpoint):
    assert folder_conflict(output, checkpoint) is None
