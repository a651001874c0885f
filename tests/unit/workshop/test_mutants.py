"""The mutant runner itself: it must not call a mutant caught that is not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent.parent

BROKEN = """\
--- a/src/penstock/__init__.py
+++ b/src/penstock/__init__.py
@@ -1,3 +1,3 @@
 \"\"\"A package.\"\"\"
 
-__version__ = "0.1.0"
+__version__ = {version}
"""

TESTS = """\
import penstock


def test_sharp() -> None:
    assert penstock.__version__ == "0.1.0"


def test_blunt() -> None:
    assert penstock.__version__


def test_wrong_without_any_patch() -> None:
    assert penstock.__version__ == "9"
"""


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests" / "mutants" / "run.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with one package and three tests."""
    files = {
        "setup.cfg": "[options]\npackages =\n    penstock\npackage_dir =\n    penstock = src/penstock\n",
        "src/penstock/__init__.py": '"""A package."""\n\n__version__ = "0.1.0"\n',
        "tests/test_version.py": TESTS,
    }
    tree = tmp_path / "tree"
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "tests" / "mutants").mkdir()
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    monkeypatch.setattr(runner, "ROOT", tree)
    monkeypatch.setattr(runner, "LIBRARIES", ())
    return tree


def patch(tree: Path, test: str | None, version: str = '"0.2.0"') -> Path:
    file = tree / "a.patch"
    header = f"# test: tests/test_version.py::{test}\n" if test else ""
    file.write_text(header + BROKEN.format(version=version))
    return file


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.campaign), 2])
def test_a_mutant_whose_test_goes_red_is_caught(tree: Path, runner: ModuleType, jobs: int) -> None:
    assert runner.run([patch(tree, "test_sharp")] * jobs, None, jobs) == 0


def test_a_mutant_whose_test_stays_green_is_a_failure(
    tree: Path, runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.run([patch(tree, "test_blunt")], None) == 1
    assert "stayed green" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("test", "version", "complaint"),
    [
        ("test_wrong_without_any_patch", '"0.2.0"', "not green without any patch"),
        ("test_that_does_not_exist", '"0.2.0"', "not green without any patch"),
        (None, '"0.2.0"', "first line must be '# test:"),
        ("test_sharp", "(", "does not compile"),
    ],
)
def test_a_mutant_that_proves_nothing_is_an_error(
    tree: Path, runner: ModuleType, test: str | None, version: str, complaint: str
) -> None:
    with pytest.raises(runner.BrokenMutantError, match=complaint):
        runner.run([patch(tree, test, version)], None)


def test_a_patch_for_another_tree_is_an_error(tree: Path, runner: ModuleType) -> None:
    file = patch(tree, "test_sharp")
    file.write_text(file.read_text().replace('-__version__ = "0.1.0"', '-__version__ = "7"'))
    with pytest.raises(runner.BrokenMutantError, match="does not apply"):
        runner.run([file], None)


def test_the_tree_itself_is_never_touched(tree: Path, runner: ModuleType) -> None:
    before = (tree / "src" / "penstock" / "__init__.py").read_text()
    runner.run([patch(tree, "test_sharp")], None)
    assert (tree / "src" / "penstock" / "__init__.py").read_text() == before


def test_a_caught_mutant_is_not_tried_again_at_the_same_commit(
    tree: Path, runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    file, evidence = patch(tree, "test_sharp"), tree.parent / "mutants.json"
    file = file.rename(tree / "tests" / "mutants" / file.name)
    assert runner.run([file], evidence, resume=True) == 0
    assert "caught      a" in capsys.readouterr().out
    assert runner.run([file], evidence, resume=True) == 0
    assert "caught      a" not in capsys.readouterr().out
    (mutant,) = json.loads(evidence.read_text())["figures"]["mutants"]
    assert (mutant["mutant"], mutant["tests"]) == ("a", ["tests/test_version.py::test_sharp"])
    assert mutant["caught"]
