"""Jars from Maven Central, with the jars that they need, in a folder of the user's cache.

folder = cache() / "kafka-4.3.1"
fetch(folder, ["org.apache.kafka:kafka_2.13:4.3.1"])
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock_emulators.gcloud import EmulatorNotFoundError

_DOWNLOAD_SECONDS = 600
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_ALONE = (
    "<classifier>{}</classifier><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    "</exclusions>"
)


def cache() -> Path:
    """Return the folder in which Penstock keeps what it has downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def fetch(folder: Path, artifacts: Sequence[str]) -> None:
    """Make a folder of the jars of artifacts, as ``group:name:version``, and of their dependencies at run time.

    ``group:name:version:classifier`` is one jar without its dependencies, such as ``…:tests``.
    Nothing is done if the folder exists.

    Raises:
        EmulatorNotFoundError: Maven could not download them; the message has what it printed.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Downloaded under another name and renamed: another process sees all of the jars or none.
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        (Path(beside) / "pom.xml").write_text(_project(artifacts))
        command = ["mvn", "-q", "-B", "-f", f"{beside}/pom.xml", _GOAL, f"-DoutputDirectory={beside}/jars"]
        answer = subprocess.run(
            [*command, "-DincludeScope=runtime"], capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS
        )
        if answer.returncode:
            names = ", ".join(artifacts)
            raise EmulatorNotFoundError(f"Maven could not download {names}:\n{answer.stdout[-2000:]}")
        with suppress(OSError):  # another process was first
            os.rename(f"{beside}/jars", folder)


def _project(artifacts: Sequence[str]) -> str:
    dependencies = "".join(map(_dependency, artifacts))
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )


def _dependency(artifact: str) -> str:
    group, name, version, *classifier = artifact.split(":")
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{_ALONE.format(*classifier) if classifier else ''}</dependency>"
    )
