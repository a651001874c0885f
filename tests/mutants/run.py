"""Show that the tests can fail: each patch here breaks one rule, and the test that it names must turn red.

    python tests/mutants/run.py [--evidence FILE] [--jobs N] [PATCH ...]

A patch is a unified diff whose first line is `# test: <pytest node id>`. It may have several such lines; then each of
the tests must turn red. Patches are applied to a copy of the tree. The named tests must be green on the copy without
a patch. A patch that does not apply or does not compile is an error, and so is one whose test stays green or does not
end.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TEST_SECONDS = 300
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


class Copy:
    """A copy of the work tree. Programs that run in it import penstock only from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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

    def run(self, tests: Sequence[str]) -> tuple[int, str]:
        """Return the exit code of pytest (-1: it did not end in time) and its output."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_CAMPAIGN"}
        environment |= {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        # A test that is left out would look as if the mutant survived.
        environment["PENSTOCK_REQUIRE_EMULATORS"] = "1"
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TEST_SECONDS * len(tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return -1, f"did not end within {TEST_SECONDS} s a test"
        return process.returncode, output


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
            code, output = copy.run([test])
            if code != RED:
                outcome = "stayed green" if code == GREEN else f"could not be run (pytest: {code})\n{output}"
                return f"{test} {outcome}"
        return None
    finally:
        copy.apply(mutant, reverse=True)


def check_green(copy: Copy, mutants: Sequence[Mutant]) -> None:
    """Raise BrokenMutantError unless every named test passes on the unpatched copy."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, output = copy.run(tests)
    if code != GREEN:
        raise BrokenMutantError(f"the named tests are not green without any patch (pytest: {code})\n{output}")


def outcome_of(copies: queue.SimpleQueue[Copy], mutant: Mutant) -> dict[str, Any]:
    """Try a mutant on a copy that no other thread uses; print and return the outcome."""
    copy, started = copies.get(), time.monotonic()
    try:
        survived = catch(copy, mutant)
    finally:
        copies.put(copy)
    seconds = round(time.monotonic() - started, 1)
    print(f"{'NOT CAUGHT' if survived else 'caught':<10}  {mutant.name}  ({seconds} s)", flush=True)
    if survived:
        print(f"            {survived}", file=sys.stderr)
    return {"mutant": mutant.name, "tests": list(mutant.tests), "caught": survived is None}


def run(patches: Sequence[Path], evidence: Path | None, jobs: int = 1) -> int:
    mutants = [read_mutant(patch) for patch in patches]
    if not mutants:
        print("no patches in tests/mutants", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder, str(number))))
        first = copies.get()
        check_green(first, mutants)
        copies.put(first)
        print(f"{len(mutants)} mutants; their tests are green without them", flush=True)
        with ThreadPoolExecutor(jobs) as threads:
            results = list(threads.map(lambda mutant: outcome_of(copies, mutant), mutants))
    if evidence:
        evidence.parent.mkdir(parents=True, exist_ok=True)
        facts = {"commit": _commit(), "figures": {"mutants": results}}
        evidence.write_text(json.dumps(facts, indent=2) + "\n")
    return 0 if all(result["caught"] for result in results) else 1


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("patches", nargs="*", type=Path, metavar="PATCH")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutants that are tried in parallel")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="write the outcome as JSON")
    given = parser.parse_args()
    patches = [patch.resolve() for patch in given.patches] or sorted(Path(__file__).parent.glob("*.patch"))
    try:
        return run(patches, given.evidence, given.jobs)
    except BrokenMutantError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
