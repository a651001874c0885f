"""The locks in requirements/ satisfy setup.cfg on every supported Python, and `tools/setup.sh` installs a lock."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import CONSTRAINTS, LOCKS, ROOT, SETUPS, Lock, declared

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = (("linux", "Linux", "x86_64"), ("darwin", "Darwin", "arm64"))


def minor(python: str) -> int:
    return int(python.partition(".")[2])


CASES = [
    pytest.param(lock, python, platform, id=f"{lock.name}-{python}-{platform[0]}")
    for lock in LOCKS
    for python in PYTHONS
    for platform in PLATFORMS
    if minor(python) >= minor(lock.python)
]


def environment(python: str, platform: tuple[str, str, str]) -> dict[str, str]:
    """Return the markers of a Python on a platform."""
    sys_platform, system, machine = platform
    return {
        "python_version": python,
        "python_full_version": f"{python}.20",
        "sys_platform": sys_platform,
        "platform_system": system,
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def applies(requirement: Requirement, markers: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(markers)


def entries(lock: Lock) -> list[tuple[Requirement, int]]:
    """Return the entries of a lock, each with the number of its hashes."""
    text = re.sub(r"#.*", "", lock.file.read_text()).replace("\\\n", " ")
    parts = [line.split("--hash=") for line in text.splitlines() if line.strip()]
    return [(Requirement(entry.strip()), len(hashes)) for entry, *hashes in parts]


def pinned(lock: Lock, markers: dict[str, str]) -> Mapping[str, str]:
    """Return the version of each package that the lock installs."""
    versions: dict[str, str] = {}
    for requirement, _ in entries(lock):
        if applies(requirement, markers):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"two versions of {name}"
            (version,) = requirement.specifier
            assert version.operator == "=="
            versions[name] = version.version
    return versions


@pytest.mark.parametrize(("lock", "python", "platform"), CASES)
def test_a_lock_has_every_requirement_in_range(
    lock: Lock, python: str, platform: tuple[str, str, str]
) -> None:
    markers = environment(python, platform)
    versions = pinned(lock, markers)
    wanted = [each for each in map(Requirement, lock.wanted) if applies(each, markers)]
    assert wanted
    wrong = [
        str(each)
        for each in wanted
        if not each.specifier.contains(versions.get(canonicalize_name(each.name), "0"))
    ]
    assert wrong == [], f"{lock.file.name} does not have these; `make lock` adds them"


@pytest.mark.parametrize(("lock", "python", "platform"), CASES)
def test_a_package_has_one_version_in_all_locks(
    lock: Lock, python: str, platform: tuple[str, str, str]
) -> None:
    markers = environment(python, platform)
    common = pinned(CONSTRAINTS, markers)
    versions = pinned(lock, markers)
    assert {name: common.get(name, version) for name, version in versions.items()} == versions


def test_every_extra_of_setup_cfg_is_locked() -> None:
    extras = {extra for lock in LOCKS for extra in lock.extras}
    locked = {line for lock in LOCKS for line in lock.wanted}
    for setup in SETUPS.values():
        for extra, lines in declared(setup).items():
            outside = {line for line in lines if not line.startswith("penstock")} - locked
            assert outside == set(), f"add {extra} to one of {extras}"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_no_address_and_no_path(lock: Lock) -> None:
    assert (
        re.findall(r"^.*(?:://|--(?:extra-)?index|--find-links| @ |file:).*$", lock.file.read_text(), re.M)
        == []
    )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_entry_of_an_installed_lock_has_hashes(lock: Lock) -> None:
    """With one hash in the constraints, pip would ask users for a hash of Penstock itself."""
    without = [requirement.name for requirement, hashes in entries(lock) if not hashes]
    assert without == ([] if lock.hashes else [requirement.name for requirement, _ in entries(lock)])


PROGRAM = '#!/bin/sh\necho "{name} $*" >> {log}\n'


def set_up(folder: Path, lock: str, *, uv: str | None, **variables: str) -> list[str]:
    """Run tools/setup.sh on an environment whose programs only write what they were told; return these lines."""
    programs, log = folder / "bin", folder / "log"
    programs.mkdir(parents=True)
    for name, end in {"python": "", "uv": uv}.items():
        if end is not None:
            (programs / name).write_text(PROGRAM.format(name=name, log=log) + end)
            (programs / name).chmod(0o755)
    command = ["sh", "tools/setup.sh", str(folder), lock]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()


def test_uv_installs_exactly_the_lock_and_then_the_checkout(tmp_path: Path) -> None:
    lines = [line for line in set_up(tmp_path / "e", "run", uv="") if line.startswith("uv pip")]
    packages, checkout = lines
    assert "--no-deps --require-hashes" in packages
    # The jars of Spark are compressed already.
    assert "pyspark:--build-option=--compression=stored" in packages
    assert packages.endswith("--requirement requirements/run.txt")
    assert checkout.endswith("--no-deps --no-build-isolation --editable . --editable ./emulators")


@pytest.mark.parametrize("uv", [None, "exit 1"], ids=["missing", "failing"])
def test_without_uv_pip_installs_the_same_lock(tmp_path: Path, uv: str | None) -> None:
    lines = [line for line in set_up(tmp_path / "e", "run", uv=uv) if " install " in line]
    lines = [line for line in lines if line.startswith("python") and "uv.txt" not in line]
    packages, checkout = lines
    assert packages.endswith("--no-deps --require-hashes --requirement requirements/run.txt")
    assert checkout.endswith("--no-deps --no-build-isolation --editable . --editable ./emulators")


def test_uv_asks_the_index_that_pip_is_configured_with(tmp_path: Path) -> None:
    reports = f'echo "index $UV_DEFAULT_INDEX" >> {tmp_path / "e" / "log"}'
    lines = set_up(tmp_path / "e", "run", uv=reports, PIP_INDEX_URL="https://mirror.example/simple")
    assert "index https://mirror.example/simple" in lines
