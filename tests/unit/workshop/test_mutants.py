"""The runner of mutants must not call a mutant caught that is not. The check finds each mutant that cannot run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.long(seconds=5)

ROOT = Path(__file__).resolve().parent.parent.parent.parent

TESTS = """\
import penstock


def test_sharp() -> None:
    assert penstock.__version__ == "0.1.0"


def test_blunt() -> None:
    assert penstock.__version__


def test_wrong_without_any_mutant() -> None:
    assert penstock.__version__ == "9"
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests" / "mutants")
        yield importlib.import_module("run"), importlib.import_module("check")
        for name in ("run", "check", "triples"):
            patch.delitem(sys.modules, name)


@pytest.fixture
def runner(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture
def check(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[1]


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
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    monkeypatch.setattr(runner, "ROOT", tree)
    monkeypatch.setattr(runner, "LIBRARIES", ())
    return tree


DEFINITION = """\
[[mutant]]
name = "a"
breaks = "The version is another one."
tests = ["test_version.py::test_sharp"]
file = "src/penstock/__init__.py"
old = '''
__version__ = "0.1.0"
'''
new = '''
__version__ = "0.2.0"
'''
"""


def define(tree: Path, definition: str = DEFINITION) -> None:
    (tree / "tests" / "mutants.toml").write_text(definition)


def mutants(tree: Path, runner: ModuleType, test: str = "test_sharp", version: str = '"0.2.0"') -> list[Any]:
    define(tree, DEFINITION.replace("test_sharp", test).replace('"0.2.0"', version))
    return runner.read_mutants(runner.definitions(tree))  # type: ignore[no-any-return]


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.campaign), 2])
def test_a_mutant_whose_test_goes_red_is_caught(tree: Path, runner: ModuleType, jobs: int) -> None:
    assert runner.run(mutants(tree, runner) * jobs, None, jobs) == 0


def test_a_mutant_whose_test_stays_green_is_a_failure(
    tree: Path, runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.run(mutants(tree, runner, "test_blunt"), None) == 1
    assert "stayed green" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("test", "version", "complaint"),
    [
        ("test_wrong_without_any_mutant", '"0.2.0"', "not green without any mutant"),
        ("test_that_does_not_exist", '"0.2.0"', "not green without any mutant"),
        ("test_sharp", "(", "does not compile"),
    ],
)
def test_a_mutant_that_proves_nothing_is_an_error(
    tree: Path, runner: ModuleType, test: str, version: str, complaint: str
) -> None:
    with pytest.raises(runner.BrokenMutantError, match=complaint):
        runner.run(mutants(tree, runner, test, version), None)


def test_a_mutant_of_another_tree_is_an_error(tree: Path, runner: ModuleType) -> None:
    (mutant,) = mutants(tree, runner)
    (tree / "src" / "penstock" / "__init__.py").write_text('"""A package."""\n\n__version__ = "7"\n')
    with pytest.raises(runner.BrokenMutantError, match="has the old text 0 times"):
        runner.run([mutant], None)


def test_the_tree_itself_is_never_touched(tree: Path, runner: ModuleType) -> None:
    before = (tree / "src" / "penstock" / "__init__.py").read_text()
    runner.run(mutants(tree, runner), None)
    assert (tree / "src" / "penstock" / "__init__.py").read_text() == before


def test_a_caught_mutant_is_not_tried_again_at_the_same_commit(
    tree: Path, runner: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, evidence = mutants(tree, runner), tree.parent / "mutants.json"
    assert runner.run(chosen, evidence, resume=True) == 0
    assert "caught      a" in capsys.readouterr().out
    assert runner.run(chosen, evidence, resume=True) == 0
    assert "caught      a" not in capsys.readouterr().out
    figures = json.loads(evidence.read_text())["figures"]
    assert (list(figures["caught"]), figures["not caught"]) == (["a"], {})


def test_mutants_are_chosen_by_name_or_folder(tree: Path, runner: ModuleType) -> None:
    (a,) = mutants(tree, runner)
    others = [a, replace(a, name="b-one", home="tests/b/mutants.toml"), replace(a, name="b-two")]

    def chosen(*names: str) -> list[str]:
        return [mutant.name for mutant in runner.choose(others, names)]

    assert chosen() == chosen("tests") == ["a", "b-one", "b-two"]
    assert chosen("b-*") == ["b-one", "b-two"]
    assert chosen("a", "tests/b/") == ["a", "b-one"]
    assert chosen("c") == []


def test_the_definitions_of_a_commit_are_compared_with_the_tree(tree: Path, runner: ModuleType) -> None:
    define(tree)
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "one mutant"], check=True)
    define(tree, DEFINITION.replace("0.2.0", "0.3.0"))
    assert runner.at_commit("HEAD") == {"tests/mutants.toml": DEFINITION}


def test_the_check_accepts_a_good_mutant(tree: Path, check: ModuleType) -> None:
    define(tree)
    assert list(check.problems(tree)) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('__version__ = "0.1.0"', '__version__ = "7"', "has the old text 0 times"),
        ('__version__ = "0.1.0"\n', '"', "has the old text 8 times"),
        ("0.2.0", "0.1.0", "the new text is the old one"),
        ('__version__ = "0.2.0"', "__version__ = (", "a does not compile"),
        ("src/penstock/__init__.py", "src/penstock/gone.py", "there is no src/penstock/gone.py"),
        ("test_version.py::", "test_gone.py::", "there is no tests/test_gone.py"),
        ("test_sharp", "test_gone", "tests/test_version.py has no test_gone"),
        ("test_sharp", "test_sharp::test_gone", "has no test_sharp::test_gone"),
        ('["test_version.py::test_sharp"]', "[]", "a needs name, tests and edits"),
        ("breaks", "brakes", "a needs name, tests and edits"),
        ("old = ", "was = ", "a needs name, tests and edits"),
        ("file = ", "# ", "an edit needs file, old and new"),
        ("[[mutant]]", "[[mutant]", "tests/mutants.toml"),
    ],
)
def test_the_check_finds_a_mutant_that_cannot_run(
    tree: Path, check: ModuleType, old: str, new: str, complaint: str
) -> None:
    assert old in DEFINITION
    define(tree, DEFINITION.replace(old, new, 1))
    (problem,) = check.problems(tree)
    assert complaint in problem


def test_the_check_finds_equal_names_and_another_order(tree: Path, check: ModuleType) -> None:
    define(tree, DEFINITION + DEFINITION)
    assert list(check.problems(tree)) == ["2 mutants have the name a"]
    define(tree, DEFINITION.replace('"a"', '"b"') + DEFINITION)
    assert list(check.problems(tree)) == ["tests/mutants.toml: a comes after b: sort by name"]


def test_a_parameter_of_a_test_and_a_method_exist_with_their_function(tree: Path, check: ModuleType) -> None:
    (tree / "tests" / "test_version.py").write_text("class TestIt:\n    def test_sharp(self) -> None: ...\n")
    define(tree, DEFINITION.replace("test_sharp", "TestIt::test_sharp[a-b::c]"))
    assert list(check.problems(tree)) == []


@pytest.mark.parametrize(
    ("old", "new", "compiles"),
    [
        ("return 1", "return 2", True),
        ("return 1", "return (", False),
        ("return 1", "nonlocal a", False),
        ("TEXT", "EMPTY", True),
        ('"""', "'''", False),
        ("@cache", "@cache(", False),
    ],
)
def test_the_check_compiles_what_a_mutant_changes(
    tmp_path: Path, check: ModuleType, old: str, new: str, compiles: bool
) -> None:
    text = '@cache\ndef a(\n    b: int,\n) -> int:\n    return 1\n\n\nclass B:\n    c = """\nd TEXT\n"""\n\n\ne = 1\n'
    (tmp_path / "a.py").write_text(text)
    if compiles:
        check.compile_changed(tmp_path / "a.py", text.replace(old, new, 1))
    else:
        with pytest.raises(SyntaxError):
            check.compile_changed(tmp_path / "a.py", text.replace(old, new, 1))
