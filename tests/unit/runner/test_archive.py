"""Which archive of Spark's classes a JVM gets: one for its Java and its Spark, and only a whole one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.runner.spark import class_archive
from penstock.runner.spark.class_archive import find_archive
from penstock.runner.spark.java import Java
from penstock.runner.spark.settings import java_options

JAVA = Java("/opt/java-17", 17, "PATH")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose cache folder exists, with a Spark of one jar."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core.jar").write_bytes(b"classes")
    monkeypatch.setattr(class_archive, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    (tmp_path / "penstock").mkdir()
    return {"XDG_CACHE_HOME": str(tmp_path)}


def put(environment: dict[str, str], content: bytes, length: int, folder: str = "penstock") -> Path:
    path = Path(environment["XDG_CACHE_HOME"], folder, f"{class_archive.archive_name(JAVA)}-{length}.jsa")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_an_archive_is_found_for_the_java_that_made_it(environment: dict[str, str]) -> None:
    assert find_archive(JAVA, environment) is None
    made = put(environment, b"12345", 5)
    assert find_archive(JAVA, environment) == made
    assert find_archive(Java("/opt/java-21", 21, "PATH"), environment) is None


def test_the_archive_of_the_virtual_environment_comes_before_that_of_the_user(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_user = put(environment, b"12345", 5)
    of_environment = put(environment, b"123456", 6, "venv/penstock")
    assert find_archive(JAVA, environment) == of_environment
    monkeypatch.setattr("sys.prefix", sys.base_prefix)
    assert find_archive(JAVA, environment) == of_user


def test_an_archive_that_is_cut_off_is_not_used(environment: dict[str, str]) -> None:
    put(environment, b"1234", 5)
    assert find_archive(JAVA, environment) is None


def test_an_archive_of_another_spark_is_not_used(environment: dict[str, str], tmp_path: Path) -> None:
    put(environment, b"12345", 5)
    (tmp_path / "spark" / "jars" / "spark-core.jar").write_bytes(b"other classes")
    assert find_archive(JAVA, environment) is None


def test_the_jvm_gets_an_archive_only_if_there_is_one() -> None:
    assert "Shared" not in java_options("log4j", "/tmp")
    options = java_options("log4j", "/tmp", "/cache/a b.jsa")
    assert "'-XX:SharedArchiveFile=/cache/a b.jsa'" in options
    assert "-XX:ArchiveRelocationMode=0" in options  # else its pages become memory of this JVM
