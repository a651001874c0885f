"""Lay the packages of setup.cfg out as one tree of links, as an installed copy would lie.

    python tools/layout.py FOLDER

Type checkers cannot see through the editable install's import hook, and a patched copy of the tree (the
mutants) must not import the original through it. Both put FOLDER on their path instead; it is made anew.
"""

from __future__ import annotations

import configparser
import shutil
import sys
from pathlib import Path


def package_folders(root: Path) -> dict[str, Path]:
    """Return where each package of `root`/setup.cfg has its source, outermost package first."""
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg")
    packages = config["options"]["packages"].split()
    mapped = dict(_mapping(line) for line in config["options"]["package_dir"].strip().splitlines())
    return {package: root / _folder(package, mapped) for package in sorted(packages)}


def lay_out(root: Path, target: Path) -> None:
    """Make `target` hold every package of `root` as folders of links to its files."""
    if target.exists():
        shutil.rmtree(target)
    for package, folder in package_folders(root).items():
        place = target.joinpath(*package.split("."))
        place.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            if file.is_file():
                (place / file.name).symlink_to(file.resolve())


def _mapping(line: str) -> tuple[str, str]:
    package, _, folder = line.partition("=")
    return package.strip(), folder.strip()


def _folder(package: str, mapped: dict[str, str]) -> str:
    """The rule of setuptools: the longest mapped prefix, and the rest of the name below it."""
    parent, rest = package, []
    while parent not in mapped:
        parent, _, last = parent.rpartition(".")
        rest.insert(0, last)
    return "/".join([mapped[parent], *rest])


if __name__ == "__main__":
    lay_out(Path(__file__).resolve().parent.parent, Path(sys.argv[1]))
