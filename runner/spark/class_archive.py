"""The name of the archive of Spark's classes, and the folders that may have one; see `archive`, which makes it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.runner.spark.gateway import spark_home
from penstock.runner.spark.java import Java, cache_folder


def find_archive(java: Java, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the archive for this Java and the Spark of this process, if there is a whole one."""
    name = archive_name(java)
    for folder in _folders(os.environ if environment is None else environment):
        for path in folder.glob(f"{name}-*.jsa"):
            try:
                if path.stat().st_size == int(path.stem.rpartition("-")[2]):
                    return path
            except (OSError, ValueError):
                continue
    return None


def _folders(environment: Mapping[str, str]) -> list[Path]:
    """Return where an archive may be; a new one goes to the first folder that can be written."""
    in_environment = [Path(sys.prefix, "penstock")] if sys.prefix != sys.base_prefix else []
    return [*in_environment, cache_folder(environment)]


def writable_folder() -> Path:
    """Return the folder for a new archive; it is made if it is missing."""
    *others, last = _folders(os.environ)
    for folder in others:
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    last.mkdir(parents=True, exist_ok=True, mode=0o700)
    return last


def archive_name(java: Java) -> str:
    """Return the part of an archive's name that says what it is for."""
    jars = sorted((each.name, each.stat().st_size) for each in (spark_home() / "jars").glob("*.jar"))
    try:
        release = Path(java.home, "release").read_text()
    except OSError:
        release = str(java.version)
    # An update of Java or Spark in place keeps the paths, so the release file and the sizes of the jars count too.
    fits = hashlib.sha256(repr((java.home, release, str(spark_home()), jars)).encode()).hexdigest()[:12]
    return f"spark-{fits}"
