"""Write the locks in `requirements/`: exact versions for every supported Python and platform.

constraints.txt   all extras, for users: `pip install -c requirements/constraints.txt '.[cli,spark]'`
run.txt           what `make run` installs, with hashes
schedulers.txt    what a test of the schedulers installs into an environment of its own, with hashes
test.txt          what every other target installs, with hashes
uv.txt            what installs the others, with hashes

    make lock                                     add what setup.cfg requires now; keep the other versions
    make lock ARGS=--upgrade                      take the newest version of everything
    make lock ARGS='--upgrade-package pyarrow'    take the newest version of one

`tools/setup.sh` installs a lock without resolving anything. A lock has no address of an index, so that it serves with a
mirror too. ARGS are options of `uv pip compile`.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
SETUPS = {"penstock": ROOT / "setup.cfg", "penstock-emulators": ROOT / "emulators" / "setup.cfg"}
OLDEST_PYTHON, OLDEST_FOR_TESTS = "3.10", "3.11"

TOOLS = ("setuptools>=77,<83",)
"""What a lock has besides: builds the editable installs, and the packages that are published without a wheel."""

INSTALLER = ("uv>=0.13,<0.14",)
"""What installs the other locks; pip installs it."""

SCHEDULERS = (
    "apache-airflow-core>=3.3,<3.4",
    "apache-airflow-task-sdk>=1.3,<2",
    "dagster>=1.13,<2",
    "msgspec>=0.20,<0.23",
    "typing_extensions>=4.12,<5",
)
"""The schedulers, and what Penstock needs in their environments to wait for a job."""

_OWN = re.compile(r"(penstock|penstock-emulators)(?:\[([\w,-]+)\])?(?:==[\w.]+)?")


def declared(setup: Path) -> Mapping[str, list[str]]:
    """Return the requirements in a setup.cfg, by extra; "" is what every install brings."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(setup)
    extras = dict(config["options.extras_require"]) if config.has_section("options.extras_require") else {}
    lines = {"": config["options"]["install_requires"], **extras}
    return {extra: [line for line in text.splitlines() if line] for extra, text in lines.items()}


def requirements(distribution: str, *extras: str) -> set[str]:
    """Return the requirements of extras; those that name a distribution of this repository are followed."""
    return set(_followed(distribution, {"", *extras}, set()))


def _followed(distribution: str, extras: set[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    for extra in extras - {extra for name, extra in seen if name == distribution}:
        seen.add((distribution, extra))
        for line in declared(SETUPS[distribution])[extra]:
            if own := _OWN.fullmatch(line):
                yield from _followed(own[1], {"", *filter(None, (own[2] or "").split(","))}, seen)
            else:
                yield line


@dataclass(frozen=True, slots=True)
class Lock:
    """One file: the extras that it serves, or other requirements, and the oldest Python that it is for.

    pip admits hashes of constraints only if everything has hashes, so the constraints for users have none.
    """

    name: str
    extras: tuple[str, ...] = ()
    python: str = OLDEST_PYTHON
    hashes: bool = True
    others: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    @property
    def wanted(self) -> set[str]:
        """The requirements that it satisfies."""
        if not self.extras:
            return set(self.others)
        return requirements("penstock", *self.extras) | requirements("penstock-emulators") | set(TOOLS)


CONSTRAINTS = Lock("constraints", ("all", "demo", "java"), hashes=False)
LOCKS = (
    CONSTRAINTS,
    Lock("run", ("demo",)),
    Lock("schedulers", python=OLDEST_FOR_TESTS, others=SCHEDULERS),
    Lock("test", ("docs", "lint", "test"), python=OLDEST_FOR_TESTS),
    Lock("uv", others=INSTALLER),
)
"""In the order in which they are made: the versions of the first hold in the others."""


def compile_lock(lock: Lock, *options: str) -> None:
    """Resolve the requirements of a lock with uv, and write its file.

    Raises:
        subprocess.CalledProcessError: uv found no solution; it has printed why.
    """
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "-", "--quiet", "--universal"]
    command += [
        "--python-version",
        lock.python,
        "--no-annotate",
        "--no-emit-index-url",
        "--no-emit-find-links",
    ]
    command += ["--custom-compile-command", "make lock", "--output-file", str(lock.file), *options]
    command += ["--generate-hashes"] if lock.hashes else []
    command += [] if lock is CONSTRAINTS else ["--constraints", str(CONSTRAINTS.file)]
    subprocess.run(command, input="\n".join(sorted(lock.wanted)), text=True, check=True)


def main(options: list[str]) -> int:
    """Write every lock; `options` are options of `uv pip compile`."""
    FOLDER.mkdir(exist_ok=True)
    for lock in LOCKS:
        print(f"Resolving {lock.file.relative_to(ROOT)}, for Python {lock.python} and newer", flush=True)
        try:
            compile_lock(lock, *options)
        except subprocess.CalledProcessError as error:
            return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
