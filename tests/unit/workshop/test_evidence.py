"""`make campaign` repeats every file in docs/evidence, and a command says which of them are stale."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.evidence import ABOUT, Claim, History, about, claims, commit, folder, lines, touches

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = sorted(path.stem for path in (ROOT / "docs" / "evidence").glob("*.json"))
SOURCES = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
MAKEFILE = (ROOT / "Makefile").read_text()
SCRIPTS = {
    "beam-suites": "-m tools.beam_suites.page",
    "bigtable-peers": "benchmarks/peers/bigtable/run.py",
    "versions": "-m tools.matrix",
}
"""Evidence that is not written by a test, and the command that writes it."""


TEMPLATES = [re.split(r"\{[^{}]*\}", each) for each in re.findall(r'f"([a-z]+-[^"]*\{[^"]*)"', SOURCES)]
"""The fixed parts of names such as ``f"sink-kills-{name}"``."""


def recorded_with_a_name_in_parts(name: str) -> bool:
    """Whether a test records under an f-string that gives this name."""
    return any(re.fullmatch(".+".join(map(re.escape, parts)), name) for parts in TEMPLATES)


@pytest.mark.parametrize("name", EVIDENCE)
def test_make_campaign_writes_each_file_of_evidence_again(name: str) -> None:
    by_command = SCRIPTS.get(name, f"$$folder/{name}.json") in MAKEFILE
    assert by_command or f'"{name}"' in SOURCES or recorded_with_a_name_in_parts(name)


def test_each_command_that_writes_evidence_is_a_step_of_make_campaign() -> None:
    recipe = MAKEFILE.partition("\ncampaign:")[2].partition("\n\n")[0]
    assert [command for command in SCRIPTS.values() if command not in recipe] == []


def test_a_file_that_no_step_writes_is_noticed() -> None:
    assert not recorded_with_a_name_in_parts("invented-kills")


@pytest.mark.parametrize("name", [name for name in EVIDENCE if name != "mutants"])
def test_the_files_that_a_claim_is_about_exist(name: str) -> None:
    assert [place for place in about(name) if not (ROOT / place).exists()] == []


def test_no_claim_is_left_without_its_files() -> None:
    with pytest.raises(LookupError, match="does not say which files invented is about"):
        about("invented")


def test_each_file_of_evidence_has_claims_with_a_commit() -> None:
    names = {claim.name.partition(" ")[0].replace("mutant", "mutants") for claim in claims()}
    assert names == set(EVIDENCE)
    assert [claim.name for claim in claims() if not claim.commit] == []


class Repository:
    """A repository whose commits add a line to one file each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(self.path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def change(self, name: str) -> str:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as text:
            text.write("a line\n")
        self.git("add", name)
        self.git("commit", "--quiet", "-m", f"changes {name}")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_claim_is_as_old_as_the_commits_that_changed_its_files(repository: Repository) -> None:
    recorded = repository.change("io/sql/write.py")
    for name in ("io/sql/write.py", "io/sql/target.py", "io/sqlite/write.py", "README.md"):
        repository.change(name)
    ages = [
        History(repository.path).age(Claim(name, recorded, ("io/sql", "README.md")))
        for name in ("sink-kills-sql", "sink-kills-files")
    ]
    assert [(age.commits, age.on_main) for age in ages] == [(3, True)] * 2
    short = History(repository.path).age(Claim("sink-kills-sql", recorded[:8], ("io/sql",)))
    assert (short.commits, short.on_main) == (2, True)


def test_the_age_counts_from_the_evidence_if_its_commit_is_gone(repository: Repository) -> None:
    repository.change("io/sql/write.py")
    repository.change("docs/evidence/kills.json")
    repository.change("io/sql/write.py")
    age = History(repository.path).age(Claim("kills", "f" * 40, ("io",)))
    assert (age.commits, age.on_main) == (1, False)
    assert next(iter(lines([age], everything=False))).startswith("   1 commits since ffffffff  kills  (not a")


def test_fresh_claims_are_not_listed_and_mutants_are_summed_up(repository: Repository) -> None:
    recorded = repository.change("a.py")
    history = History(repository.path)
    assert list(lines([history.age(Claim("kills", recorded, ("a.py",)))], everything=False)) == []
    repository.change("docs/evidence/mutants.json")
    repository.change("a.py")
    history = History(repository.path)
    names = {"one": recorded, "two": "never", "three": recorded}
    mutants = [
        Claim(f"mutant {name}", at, ("b.py" if name == "three" else "a.py",)) for name, at in names.items()
    ]
    (line,) = lines([history.age(each) for each in mutants], everything=False)
    assert line.startswith("3 mutants: 1 never tried on main, 1 changed since")


def test_a_folder_has_what_is_below_it_and_nothing_else() -> None:
    assert touches(["io/sql/write.py"], ["io/sql"])
    assert not touches(["io/sql_more/write.py", "io"], ["io/sql"])


def test_only_an_unchanged_commit_of_main_is_recorded(repository: Repository) -> None:
    docs, build = repository.path / "docs" / "evidence", repository.path / "build" / "evidence"
    main = repository.change("a.py")
    assert (folder(repository.path), commit(repository.path)) == (docs, main)
    repository.git("checkout", "--quiet", "-b", "work")
    assert folder(repository.path) == docs
    repository.change("a.py")
    assert folder(repository.path) == build
    repository.git("checkout", "--quiet", "main")
    (docs).mkdir(parents=True)
    (docs / "kills.json").write_text(json.dumps({}))
    repository.git("add", "docs")
    assert folder(repository.path) == docs
    (repository.path / "a.py").write_text("")
    assert (folder(repository.path), commit(repository.path)) == (build, f"{main}+")


def test_each_entry_of_the_table_has_evidence() -> None:
    used = {
        next(pattern for pattern in ABOUT if re.fullmatch(pattern.replace("*", ".*"), name))
        for name in EVIDENCE
        if name != "mutants"
    }
    assert used == set(ABOUT)
