"""Show that the tests can fail: each patch here breaks one rule, and the test that it names must turn red.

    python tests/mutants/run.py [--jobs N] [--evidence FILE [--resume]] [--since COMMIT] [PATCH ...]

A patch is a unified diff whose first line is `# test: <pytest node id>`. It may have several such lines; then each of
the tests must turn red. Patches are applied to a copy of the tree. The named tests must be green on the copy without
a patch. A patch that does not apply or does not compile is an error, and so is one whose test stays green or does not
end.

Mutants with quick tests are tried first. The evidence is written after each mutant. With `--resume` its outcomes are
kept, and mutants that were caught at this commit are not tried again. With `--since` only patches that changed after a
commit are tried.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
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


class BrokenMutantError(Exception):
    """The patch or its test cannot be used. The message tells which one and why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One patch and the node ids of the tests that must catch it."""

    patch: Path
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.patch.stem


def read_mutant(patch: Path) -> Mutant:
    """Return the mutant in `patch`.

    Raises:
        BrokenMutantError: it names no test.
    """
    tests = []
    for line in patch.read_text().splitlines():
        if not line.startswith("# test:"):
            break
        tests.append(line.removeprefix("# test:").strip())
    if not tests:
        raise BrokenMutantError(f"{patch.name}: the first line must be '# test: <pytest node id>'")
    return Mutant(patch, tuple(tests))


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

    def apply(self, mutant: Mutant, *, reverse: bool = False) -> None:
        command = ["git", "apply", *(["-R"] if reverse else []), str(mutant.patch)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokenMutantError(f"{mutant.patch.name} does not apply: {done.stderr.strip()}")

    def compile(self, mutant: Mutant) -> None:
        for line in mutant.patch.read_text().splitlines():
            if line.startswith("+++ b/") and line.endswith(".py"):
                file = self.folder / line.removeprefix("+++ b/")
                try:
                    compile(file.read_text(), str(file), "exec")
                except SyntaxError as error:
                    raise BrokenMutantError(f"{mutant.patch.name} does not compile: {error}") from error

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
    copy.apply(mutant)
    try:
        copy.compile(mutant)
        for test in mutant.tests:
            done = copy.run([test], "-x", seconds=TEST_SECONDS)
            if done.code == -1:
                return f"{test} did not end within {TEST_SECONDS} s"
            if done.code != RED:
                outcome = "stayed green" if done.code == GREEN else f"could not be run (pytest: {done.code})"
                return f"{test} {outcome}\n{done.output[-3000:]}"
        return None
    finally:
        copy.apply(mutant, reverse=True)


def check_patches(copy: Copy, mutants: Sequence[Mutant]) -> None:
    """Raise BrokenMutantError for a patch that does not apply or does not compile."""
    for mutant in mutants:
        copy.apply(mutant)
        try:
            copy.compile(mutant)
        finally:
            copy.apply(mutant, reverse=True)


def run_unpatched(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> tuple[dict[str, float], set[str]]:
    """Return for each named test how long it takes on an unpatched copy, and which of them are red there.

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
                f"the named tests are not green without any patch (pytest: {run.code})\n{run.output[-9000:]}"
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
    """Whether a node id names a test of what a patch names: a file, a class, a test or one of its parameters."""
    return name == test or name.startswith((f"{test}::", f"{test}["))


class Results:
    """The outcomes so far, each with the commit at which it was found, in a file that is whole after each mutant.

    With `resume` the outcomes that `file` has are kept; an outcome goes when its patch does.
    """

    def __init__(self, file: Path | None, resume: bool) -> None:
        self._file = file
        self._commit = _commit()
        self._known: dict[str, dict[str, Any]] = {}
        if file is not None and resume and file.exists():
            names = {patch.stem for patch in (ROOT / "tests" / "mutants").glob("*.patch")}
            before = json.loads(file.read_text())["figures"]["mutants"]
            self._known = {each["mutant"]: each for each in before if each["mutant"] in names}

    def has(self, mutant: Mutant) -> bool:
        """Whether this mutant was caught at this commit."""
        known = self._known.get(mutant.name, {})
        same = known.get("tests") == list(mutant.tests) and known.get("commit") == self._commit
        return same and bool(known["caught"])

    def add(self, mutant: Mutant, caught: bool) -> None:
        self._known[mutant.name] = {
            "mutant": mutant.name,
            "tests": list(mutant.tests),
            "caught": caught,
            "commit": self._commit,
        }
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            known = [self._known[name] for name in sorted(self._known)]
            facts = {"commit": self._commit, "figures": {"mutants": known}}
            draft = self._file.with_name(f"{self._file.name}.new")
            draft.write_text(json.dumps(facts, indent=2) + "\n")
            draft.replace(self._file)

    def survivors(self) -> list[str]:
        return sorted(name for name, each in self._known.items() if not each["caught"])


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


def run(patches: Sequence[Path], evidence: Path | None, jobs: int = 1, resume: bool = False) -> int:
    mutants = [read_mutant(patch) for patch in patches]
    if not mutants:
        print("no patches in tests/mutants", file=sys.stderr)
        return 2
    results = Results(evidence, resume)
    mutants = [mutant for mutant in mutants if not results.has(mutant)]
    with copies_of_the_tree(jobs) as copies:
        check_patches(copies[0], mutants)
        seconds, red = run_unpatched(copies, mutants)
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
        raise BrokenMutantError(f"tests are not green without any patch, so these were not tried: {names}")
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


def changed_since(commit: str) -> set[Path]:
    """Return the patches that changed after a commit, committed or not."""
    command = ["git", "diff", "--name-only", commit, "--", "tests/mutants"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = ["git", "ls-files", "--others", "--exclude-standard", "--", "tests/mutants"]
    listed += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {ROOT / name for name in listed.splitlines()}


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("patches", nargs="*", type=Path, metavar="PATCH")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants that are tried in parallel")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="write the outcome as JSON")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes in the evidence")
    parser.add_argument("--since", metavar="COMMIT", help="only patches that changed after this commit")
    given = parser.parse_args()
    patches = [patch.resolve() for patch in given.patches] or sorted(Path(__file__).parent.glob("*.patch"))
    if given.since:
        patches = [patch for patch in patches if patch in changed_since(given.since)]
    try:
        return run(patches, given.evidence, given.jobs, given.resume)
    except BrokenMutantError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
