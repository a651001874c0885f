"""Missing optional packages are named with the extra that brings them."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.extras import MissingExtraError, extra_packages, require_extra

SETUP = Path(__file__).resolve().parent.parent.parent / "setup.cfg"
FOR_THE_CLONE = {"demo", "test", "lint", "docs"}
"""Extras of the targets of the Makefile."""


def extras() -> dict[str, str]:
    configuration = configparser.ConfigParser()
    configuration.read(SETUP)
    return dict(configuration["options.extras_require"])


def test_a_missing_package_is_reported_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    message = r"module rich is missing: pip install '\.\[cli\]'"
    with pytest.raises(MissingExtraError, match=message), extra_packages("cli"):
        import rich  # noqa: F401


def test_a_missing_name_of_a_namespace_package_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.bigtable", None)
    message = r"google\.cloud\.bigtable is missing: .*\[bigtable\]"
    with pytest.raises(MissingExtraError, match=message), extra_packages("bigtable"):
        import google.cloud.bigtable  # noqa: F401


def test_a_missing_module_of_penstock_is_not_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.launch.live_line", None)
    with pytest.raises(ImportError, match="live_line"), extra_packages("cli"):
        import penstock.launch.live_line  # noqa: F401


def test_a_package_is_looked_for_without_an_import() -> None:
    with pytest.raises(MissingExtraError, match=r"no_such_package\.part is missing: .*\[spark\]"):
        require_extra("spark", "no_such_package.part")
    require_extra("spark", "json")


def test_the_command_says_which_extra_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli import main

    monkeypatch.setattr(main, "exit_at_once", lambda: None)
    monkeypatch.setattr(main, "open_missing_streams", lambda: None)
    monkeypatch.delitem(sys.modules, "penstock.cli.commands", raising=False)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    assert "pip install '.[cli]'" in capsys.readouterr().err


def test_the_extra_all_brings_every_extra_for_users() -> None:
    found = extras()
    listed = found.pop("all").strip().removeprefix("penstock[").removesuffix("]").split(",")
    included = {"runner"}  # in `spark`
    assert sorted(listed) == sorted(
        found.keys() - {"java", "emulators", "quickstart", *FOR_THE_CLONE} - included
    )


def test_every_extra_for_users_is_documented() -> None:
    documented = (SETUP.parent / "docs" / "install.md").read_text()
    assert [name for name in extras().keys() - FOR_THE_CLONE if f"`{name}`" not in documented] == []


ROOT = SETUP.parent
INSTALLS_FROM_AN_INDEX = re.compile(r"pip install(?: --?[\w-]+)* '?penstock\b")
"""No index has Penstock: a package of that name there is another one."""


def test_no_page_and_no_message_tells_to_install_penstock_from_an_index() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for folder in ("src/penstock", "io", "runner", "transforms", "pipelines", "templates"):
        places += [each for each in (ROOT / folder).rglob("*") if each.suffix in (".py", ".yaml")]
    assert len(places) > 300
    found = [
        str(each.relative_to(ROOT))
        for each in places
        if INSTALLS_FROM_AN_INDEX.search(each.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["-m", "penstock.cli.main", "emulator", "bigtable"], ["-m", "benchmarks.demo.bigtable_users"]],
)
def test_the_programs_of_the_bigtable_example_name_the_extra_that_is_missing(
    tmp_path: Path, arguments: list[str]
) -> None:
    """Without the extra, as after the `pip install` of README: one line, no traceback."""
    hide = "import sys; sys.modules.update({f'google.cloud.{each}': None for each in %r})"
    hidden = ("bigtable", "bigtable_v2", "bigtable_admin_v2", "bigtable.data")
    (tmp_path / "sitecustomize.py").write_text(hide % (hidden,))
    path = os.pathsep.join(map(str, [tmp_path, ROOT / "src", ROOT / "emulators" / "src"]))
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "pip install '.[bigtable]'" in done.stderr
    assert "Traceback" not in done.stderr
