"""Show that the tests can fail: each mutant breaks one rule, and the test that it names must turn red.

    python tests/mutants/run.py [--jobs N] [--evidence FILE [--resume]] [--since COMMIT] [NAME ...]

`triples.py` says where the mutants are and what they look like. They are applied to a copy of the tree. The named tests
must be green on the copy without a mutant. A mutant that does not fit its file or does not compile is an error, and so
is one whose test stays green or does not end.

A NAME is a mutant (`*` matches any text) or a folder of tests. Mutants with quick tests are tried first. The evidence
is written after each mutant. With `--resume` its outcomes are kept, and mutants that were caught at this commit are not
tried again. With `--since` only mutants that changed after a commit are tried.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from triples import ROOT, BrokenMutantError, Mutant, definitions, read_mutants

WARM = Path(__file__).with_name("warm.py")
TEST_SECONDS = 300
LIBRARIES = (
    "apache_beam",
    "apache_beam.runners.worker.bundle_processor",
    "apache_beam.testing.test_stream_service",
    "apache_beam.testing.util",
    "confluent_kafka",
    "deltalake",
    "fastavro",
    "google.cloud.bigtable",
    "google.cloud.spanner",
    "hypothesis",
    "hypothesis.strategies",
    "psycopg",
    "pyarrow",
    "pyiceberg.catalog",
    "pyspark",
    "xdist.plugin",
    "ydb",
)
"""What the process that runs pytest imports beforehand. A missing one is imported by the tests that need it."""

RED, GREEN = 1, 0
"""Exit codes of pytest: tests failed, all passed. Others (2 to 5) mean that it could not run them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of pytest: its exit code (-1: it did not end in time), its output, and what each test did."""

    code: int
    output: str
    seconds: Mapping[str, float]
    red: frozenset[str]


class Copy:
    """A copy of the work tree. Programs that run in it import penstock only from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warm: subprocess.Popen[str] | None = None
        for name in _tree(ROOT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)

    @contextmanager
    def broken_by(self, mutant: Mutant) -> Iterator[None]:
        """Apply the mutant for as long as the context is open.

        Raises:
            BrokenMutantError: the mutant does not fit its files, or what it makes does not compile.
        """
        changed = mutant.changed_files(self.folder)
        for name, text in changed.items():
            if name.endswith(".py"):
                try:
                    compile(text, name, "exec", dont_inherit=True)
                except SyntaxError as error:
                    raise BrokenMutantError(f"{mutant.name} does not compile: {error}") from error
        before = {name: (self.folder / name).read_text() for name in changed}
        try:
            for name, text in changed.items():
                (self.folder / name).write_text(text)
            yield
        finally:
            for name, text in before.items():
                (self.folder / name).write_text(text)

    def run(self, tests: Sequence[str], *options: str, seconds: float) -> Run:
        """Run tests in this copy."""
        log = self.folder.with_name(f"{self.folder.name}.log")
        request = {
            "folder": str(self.folder),
            "tests": list(tests),
            "options": ["-q", "-p", "no:cacheprovider", *options],
            "seconds": seconds,
            "log": str(log),
        }
        told = self._ask(json.dumps(request))
        output = log.read_text(errors="replace") if log.exists() else ""
        return Run(told["code"], output, told.get("seconds", {}), frozenset(told.get("red", ())))

    def _ask(self, request: str) -> dict[str, Any]:
        """Send one line to the process that runs pytest, and return its answer."""
        if self._warm is None:
            self._warm = subprocess.Popen(
                [sys.executable, str(WARM), *LIBRARIES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._warm.stdout is not None
            self._warm.stdout.readline()
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(request, file=self._warm.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._warm.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process that runs pytest."""
        if self._warm is not None:
            assert self._warm.stdin is not None
            self._warm.stdin.close()
            self._warm.wait()


def _tree(root: Path) -> list[str]:
    """Return the names of all files that are under version control or not ignored, relative to `root`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in listed.split("\0")
        if name and ((root / name).is_file() or (root / name).is_symlink())
    ]


def catch(copy: Copy, mutant: Mutant) -> str | None:
    """Apply the mutant, run each of its tests, and undo it. Return None if all turned red, otherwise the reason."""
    with copy.broken_by(mutant):
        for test in mutant.tests:
            done = copy.run([test], "-x", seconds=TEST_SECONDS)
            if done.code == -1:
                return f"{test} did not end within {TEST_SECONDS} s"
            if done.code != RED:
                outcome = "stayed green" if done.code == GREEN else f"could not be run (pytest: {done.code})"
                return f"{test} {outcome}\n{done.output[-3000:]}"
    return None


def run_without_mutants(
    copies: Sequence[Copy], mutants: Sequence[Mutant]
) -> tuple[dict[str, float], set[str]]:
    """Return for each named test how long it takes on a copy without mutants, and which of them are red there.

    Raises:
        BrokenMutantError: a test does not exist, or pytest did not end.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    files = sorted({_file(test) for test in tests})
    # Each copy gets whole files, because tests of one file share their servers.
    shares = [
        [test for test in tests if files.index(_file(test)) % len(copies) == n] for n in range(len(copies))
    ]

    def one(copy: Copy, share: Sequence[str]) -> Run:
        return (
            copy.run(share, seconds=TEST_SECONDS * len(share)) if share else Run(GREEN, "", {}, frozenset())
        )

    with ThreadPoolExecutor(len(copies)) as threads:
        runs = list(threads.map(one, copies, shares))
    for run in runs:
        if run.code not in (GREEN, RED):
            raise BrokenMutantError(
                f"the named tests are not green without any mutant (pytest: {run.code})\n{run.output[-9000:]}"
            )
        if run.code == RED:
            print(run.output[-9000:], file=sys.stderr)
    seconds = {
        test: sum(took for run in runs for name, took in run.seconds.items() if _is_in(name, test))
        for test in tests
    }
    red = {test for test in tests for run in runs if any(_is_in(name, test) for name in run.red)}
    return seconds, red


def _file(test: str) -> str:
    return test.partition("::")[0]


def _is_in(name: str, test: str) -> bool:
    """Whether a node id names a test of what a mutant names: a file, a class, a test or one of its parameters."""
    return name == test or name.startswith((f"{test}::", f"{test}["))


class Results:
    """The commit at which each mutant was tried last, in a file that is whole after each mutant.

    With `resume` the outcomes that `file` has of the mutants in `names` are kept; an outcome goes when its mutant does.
    """

    def __init__(self, file: Path | None, resume: bool, names: set[str]) -> None:
        self._file = file
        self._commit = _commit()
        self._caught: dict[str, str] = {}
        self._not_caught: dict[str, str] = {}
        if file is not None and resume and file.exists():
            before = json.loads(file.read_text())["figures"]
            self._caught = {name: at for name, at in before["caught"].items() if name in names}
            self._not_caught = {name: at for name, at in before["not caught"].items() if name in names}

    def has(self, mutant: Mutant) -> bool:
        """Whether this mutant was caught at this commit."""
        return self._caught.get(mutant.name) == self._commit

    def add(self, mutant: Mutant, caught: bool) -> None:
        for outcomes in (self._caught, self._not_caught):
            outcomes.pop(mutant.name, None)
        (self._caught if caught else self._not_caught)[mutant.name] = self._commit
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            facts = {"figures": {"caught": self._caught, "not caught": self._not_caught}}
            draft = self._file.with_name(f"{self._file.name}.new")
            draft.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
            draft.replace(self._file)

    def survivors(self) -> list[str]:
        return sorted(self._not_caught)


def try_one(copies: queue.SimpleQueue[Copy], mutant: Mutant) -> tuple[Mutant, bool]:
    """Try a mutant on a copy that no other thread uses; print the outcome and return whether it was caught."""
    copy, started = copies.get(), time.monotonic()
    try:
        survived = catch(copy, mutant)
    finally:
        copies.put(copy)
    seconds = round(time.monotonic() - started, 1)
    print(f"{'NOT CAUGHT' if survived else 'caught':<10}  {mutant.name}  ({seconds} s)", flush=True)
    if survived:
        print(f"            {survived}", file=sys.stderr)
    return mutant, survived is None


def run(mutants: Sequence[Mutant], evidence: Path | None, jobs: int = 1, resume: bool = False) -> int:
    if not mutants:
        print("no mutant has such a name", file=sys.stderr)
        return 2
    names = {mutant.name for mutant in read_mutants(definitions(ROOT))} if resume else set()
    results = Results(evidence, resume, names)
    mutants = [mutant for mutant in mutants if not results.has(mutant)]
    with copies_of_the_tree(jobs) as copies:
        for mutant in mutants:
            with copies[0].broken_by(mutant):
                pass  # one that does not fit is told before any test runs
        seconds, red = run_without_mutants(copies, mutants)
        useless = [mutant for mutant in mutants if red.intersection(mutant.tests)]
        mutants = [mutant for mutant in mutants if mutant not in useless]
        print(f"{len(mutants)} mutants; their tests are green without them", flush=True)
        mutants.sort(key=lambda mutant: sum(seconds[test] for test in mutant.tests))
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)
        with ThreadPoolExecutor(jobs) as threads:
            for mutant, caught in threads.map(lambda mutant: try_one(free, mutant), mutants):
                results.add(mutant, caught)
    for name in results.survivors():
        print(f"NOT CAUGHT  {name}")
    if useless:
        names = ", ".join(mutant.name for mutant in useless)
        raise BrokenMutantError(f"tests are not green without any mutant, so these were not tried: {names}")
    return 1 if results.survivors() else 0


@contextmanager
def copies_of_the_tree(count: int) -> Iterator[list[Copy]]:
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        copies = [Copy(Path(folder, str(number))) for number in range(count)]
        try:
            yield copies
        finally:
            for copy in copies:
                copy.close()


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def at_commit(commit: str) -> dict[str, str]:
    """Return the text of each `mutants.toml` of a commit, by its name."""
    git = ["git", "-C", str(ROOT)]
    command = [*git, "ls-tree", "-r", "-z", "--name-only", commit, "tests"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return {
        name: subprocess.run(
            [*git, "show", f"{commit}:{name}"], capture_output=True, text=True, check=True
        ).stdout
        for name in names
        if name.endswith("/mutants.toml")
    }


def choose(mutants: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Return the mutants with these names (`*` is any text) or in these folders of tests. No names: all."""
    folders = tuple(name.rstrip("/") + "/" for name in names)
    return [
        mutant
        for mutant in mutants
        if not names
        or mutant.home.startswith(folders)
        or any(fnmatchcase(mutant.name, name) for name in names)
    ]


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants that are tried in parallel")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="write the outcome as JSON")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes in the evidence")
    parser.add_argument("--since", metavar="COMMIT", help="only mutants that changed after this commit")
    given = parser.parse_args()
    try:
        mutants = choose(read_mutants(definitions(ROOT)), given.names)
        if given.since:
            before = {(each.name, each.tests, each.edits) for each in read_mutants(at_commit(given.since))}
            mutants = [each for each in mutants if (each.name, each.tests, each.edits) not in before]
        return run(mutants, given.evidence, given.jobs, given.resume)
    except BrokenMutantError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
