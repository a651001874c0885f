"""Jars of Maven, from a program `mvn` that stands in for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.maven import cache, fetch

ARTIFACTS = ["group.a:first:1.0", "group.b:second:2.0"]


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a program `mvn` first on PATH. In `script`, $pom is the project and $out the folder of the jars."""
    program = folder / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\npom=$4; out=${{6#-DoutputDirectory=}}\necho run >>"{folder}/runs"\n{script}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_jars_of_all_artifacts_are_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, 'mkdir "$out"; cp "$pom" "$out/pom.xml"')
    folder = tmp_path / "cache" / "jars"
    for _ in range(2):
        fetch(folder, ARTIFACTS)
    project = (folder / "pom.xml").read_text()
    for group, name, version in (artifact.split(":") for artifact in ARTIFACTS):
        assert (
            f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            in project
        )
    assert (tmp_path / "runs").read_text().splitlines() == ["run"]
    assert list(folder.parent.iterdir()) == [folder]


def test_an_artifact_with_a_classifier_is_fetched_without_its_dependencies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, 'mkdir "$out"; cp "$pom" "$out/pom.xml"')
    fetch(tmp_path / "jars", ["group.a:first:1.0:tests", "group.b:second:2.0"])
    first, second = (tmp_path / "jars" / "pom.xml").read_text().split("<dependency>")[1:]
    assert "<classifier>tests</classifier><exclusions>" in first
    assert "exclusions" not in second


def test_a_failed_download_leaves_no_folder_and_tells_what_maven_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, 'mkdir "$out"; touch "$out/half.jar"; echo no such artifact; exit 1')
    folder = tmp_path / "cache" / "jars"
    with pytest.raises(EmulatorNotFoundError, match=r"group.a:first:1.0(.|\n)*no such artifact"):
        fetch(folder, ARTIFACTS)
    assert list(folder.parent.iterdir()) == []


def test_the_cache_is_where_the_desktop_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache() == Path.home() / ".cache" / "penstock"
