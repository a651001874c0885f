"""Lists the evidence that is stale: the commit at which a claim was recorded, and what has changed since.

    python tools/evidence.py [--all] [--folder] [NAME ...]

docs/evidence has one file for each claim. Campaigns write it, on commits of main: elsewhere they write build/evidence.
Nobody repairs a file by hand. A claim is stale when commits since then have changed files that the claim is about; the
list has the most commits first. Run the test or the command that records the claim when the number bothers you.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
GENERATED = ("docs/evidence", "docs/versions.md", "docs/beam-compatibility.md")
"""What campaigns write, and so no change of the work tree that they ran on."""

EVERYTHING = ("runner", "io", "transforms", "src/penstock")
READER = ("runner", "io/change_streams")
SINK = ("runner", "io/staging")
ABOUT = {
    "backpressure-*": ("runner", "tests/integration/runner/test_pressure.py"),
    "beam-suites": ("runner", "tools/beam_suites"),
    "bigtable-peers": ("io/bigtable", "io/change_streams", "benchmarks/peers/bigtable"),
    "bigtable-*": (*READER, "io/bigtable", "tests/integration/bigtable", "tests/simulation/bigtable"),
    "changed-columns-*": (
        *SINK,
        "io/change_streams",
        "io/postgres",
        "io/spanner",
        "io/sql",
        "io/iceberg",
        "tests/integration/sinks",
    ),
    "cluster-*": ("runner", "tests/integration/cluster"),
    "data-source-kills-*": ("src/penstock/spark", "io/{}", "tests/integration/spark_source"),
    "debezium-*": (*READER, "io/postgres", "transforms/formats", "tests/integration/postgres"),
    "differential": ("runner", "tests/property/runner"),
    "flat-spark": ("runner", "tests/integration/runner/test_flat.py"),
    "formats-bigtable": ("io/bigtable", "transforms/formats", "tests/integration/bigtable/test_formats.py"),
    "formats-spanner": ("io/spanner", "transforms/formats", "tests/integration/formats"),
    "kills": ("runner", "tests/integration/runner/test_kills.py"),
    "memory-*": ("runner", "tests/integration/runner/test_large_data.py"),
    "object-store-*": ("src/penstock/object_stores", "runner/store", "tests/integration/object_stores"),
    "parked-tables": (*SINK, "io/columnar", "io/delta", "tests/integration/sinks"),
    "parked-tables-sql": (*SINK, "io/sql", "tests/integration/sinks"),
    "postgres-*": (*READER, "io/postgres", "tests/integration/postgres"),
    "protocol-simulation-*": ("runner/protocol", "runner/store", "tests/simulation/protocol"),
    "sink-kills-*": (*SINK, "io/{}", "tests/integration/sinks", "tests/support/sinks"),
    "snapshot-histories-*": ("io/change_streams", "io/{}", "tests/property/change_streams"),
    "spanner-*": (*READER, "io/spanner", "tests/integration/spanner", "tests/simulation/spanner"),
    "stateful-kills": ("runner", "tests/simulation/runner/test_flat.py"),
    "table-kills": (*SINK, "io/columnar", "io/delta", "io/iceberg", "tests/integration/sinks"),
    "transfers-*": (*READER, "io/spanner", "transforms", "tests/integration/transforms"),
    "two-drivers": ("runner", "io/staging", "io/files", "tests/integration/files"),
    "versions": EVERYTHING,
    "windows-simulation": ("runner/windows", "runner/tasks", "tests/simulation/runner"),
    "ydb-*": (*READER, "io/ydb", "tests/integration/ydb", "tests/simulation/ydb"),
}
"""The files and folders that the claims with a name are about. ``{}`` is what ``*`` stands for.

A mutant is about the files that it changes and the tests that it names.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one run has shown: where it was recorded, and the files that it is about."""

    name: str
    commit: str
    about: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Age:
    """The commits since a claim was recorded that changed its files.

    `on_main` is false if the commit is not on the branch that is checked out, as after a rebase. Commits count from the
    one that added the evidence then.
    """

    claim: Claim
    commits: int
    on_main: bool


def about(name: str) -> tuple[str, ...]:
    """Return the files and folders that a claim is about.

    Raises:
        LookupError: `ABOUT` has no such name.
    """
    for pattern, places in ABOUT.items():
        if fnmatchcase(name, pattern):
            middle = name[len(pattern) - 1 :] if pattern.endswith("*") else ""
            return tuple(place.replace("{}", middle) for place in places)
    raise LookupError(f"tools/evidence.py does not say which files {name} is about")


def claims(evidence: Path = EVIDENCE) -> Iterator[Claim]:
    """Yield the claims of all files, by name. The file of the mutants and of the versions have several."""
    for file in sorted(evidence.glob("*.json")):
        facts = json.loads(file.read_text())
        if file.stem == "mutants":
            yield from _mutants(facts["figures"]["caught"])
        elif file.stem == "versions":
            yield from (
                Claim(f"versions {cell}", of["commit"], about("versions")) for cell, of in facts.items()
            )
        else:
            yield Claim(file.stem, facts["commit"], about(file.stem))


def _mutants(caught: Mapping[str, str]) -> Iterator[Claim]:
    sys.path.append(str(ROOT / "tests" / "mutants"))
    from triples import definitions, read_mutants

    for mutant in read_mutants(definitions(ROOT)):
        files = {edit.file for edit in mutant.edits} | {test.partition("::")[0] for test in mutant.tests}
        yield Claim(f"mutant {mutant.name}", caught.get(mutant.name, "never"), tuple(sorted(files)))


class History:
    """The commits of the branch that is checked out, newest first, and the files that each changed."""

    def __init__(self, root: Path) -> None:
        log = _git(root, "log", "--format=%x01%H", "--name-only", "--no-renames")
        entries = [entry.split("\n") for entry in log.split("\x01")[1:]]
        self._root = root
        self._files = [[name for name in names if name] for _, *names in entries]
        self._index = {commit: index for index, (commit, *_) in enumerate(entries)}

    def age(self, claim: Claim) -> Age:
        base = self._position(claim.commit.rstrip("+"))
        since = self._index[_recorded_by(self._root, claim.name)] if base is None else base
        commits = sum(touches(files, claim.about) for files in self._files[:since])
        return Age(claim, commits, base is not None)

    def _position(self, commit: str) -> int | None:
        """Return the place of a commit, which may be abbreviated, or None if the branch does not have it."""
        places = (
            place for known, place in self._index.items() if len(commit) > 6 and known.startswith(commit)
        )
        return next(places, None) if commit not in self._index else self._index[commit]


def touches(files: Iterable[str], places: Sequence[str]) -> bool:
    """Whether one of the files is one of the places, or below it."""
    folders = tuple(f"{place}/" for place in places)
    return any(name in places or name.startswith(folders) for name in files)


@cache
def _recorded_by(root: Path, name: str) -> str:
    """Return the commit that changed the evidence last."""
    file = "docs/evidence/" + ("mutants" if name.startswith("mutant ") else name.partition(" ")[0]) + ".json"
    return _git(root, "log", "-1", "--format=%H", "--", file).strip()


def commit(root: Path = ROOT) -> str:
    """Return the checked-out commit, with `+` if the work tree has changes."""
    dirty = _git(root, "diff", "--name-only", "HEAD", "--", *(f":!{name}" for name in GENERATED))
    return (_git(root, "rev-parse", "HEAD").strip() or "unknown") + ("+" if dirty else "")


def folder(root: Path = ROOT) -> Path:
    """Return where a campaign writes: docs/evidence on an unchanged commit of main, otherwise build/evidence."""
    branches = _git(root, "branch", "--all", "--contains", "HEAD", "--format=%(refname:short)").split()
    on_main = {"main", "origin/main"}.intersection(branches) and not commit(root).endswith("+")
    return root / "docs" / "evidence" if on_main else root / "build" / "evidence"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def lines(ages: Sequence[Age], everything: bool) -> Iterator[str]:
    """Yield a line for each stale claim. Mutants are summed up, because they are many."""
    mutants = [age for age in ages if age.claim.name.startswith("mutant ")]
    others = sorted(
        (age for age in ages if age not in mutants), key=lambda age: (-age.commits, age.claim.name)
    )
    for age in others:
        if everything or age.commits or not age.on_main:
            yield _line(age)
    if mutants:
        never = sum(age.claim.commit == "never" for age in mutants)
        stale = sum(age.commits > 0 and age.claim.commit != "never" for age in mutants)
        yield f"{len(mutants)} mutants: {never} never tried on main, {stale} changed since, they or their tests"


def _line(age: Age) -> str:
    note = "" if age.on_main else "  (not a commit of main: counted since the evidence was added)"
    return f"{age.commits:>4} commits since {age.claim.commit[:8]}  {age.claim.name}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these claims; * is any text")
    parser.add_argument("--all", action="store_true", help="also claims that are not stale")
    parser.add_argument("--folder", action="store_true", help="print where a campaign writes, and end")
    given = parser.parse_args()
    if given.folder:
        print(folder().relative_to(ROOT))
        return
    history = History(ROOT)
    chosen = [
        claim
        for claim in claims()
        if not given.names or any(fnmatchcase(claim.name, name) for name in given.names)
    ]
    print(*lines([history.age(claim) for claim in chosen], given.all), sep="\n")


if __name__ == "__main__":
    main()
