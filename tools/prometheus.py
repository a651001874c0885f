"""Find Prometheus and its tool promtool, which tests of the alerts need, or install them: `python -m tools.prometheus`.

Debian's package `prometheus` has both. It is unpacked below ~/.cache/penstock/servers and not installed, because an
installed package would start a service.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "prometheus"


class PrometheusNotFoundError(Exception):
    """There is no Prometheus; the message says how to get one."""


def find(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``: on PATH, or what `install` has unpacked.

    Raises:
        PrometheusNotFoundError: there is none.
    """
    found = shutil.which(name) or shutil.which(name, path=str(_folder() / "usr" / "bin"))
    if found is None:
        raise PrometheusNotFoundError(
            f"No {name} on PATH. On Debian and Ubuntu `python -m tools.prometheus` gets it from the package "
            f"{PACKAGE}; no root is needed"
        )
    return found


def install() -> str:
    """Return the path of promtool; unpack Debian's package first if there is none.

    Raises:
        PrometheusNotFoundError: there is none, and the package cannot be had.
    """
    try:
        return find("promtool")
    except PrometheusNotFoundError:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        try:
            _run(["apt-get", "-qq", "download", PACKAGE], download)
            (package,) = Path(download).glob("*.deb")
            _run(["dpkg-deb", "--extract", str(package), str(folder)], download)
        except (subprocess.SubprocessError, ValueError) as error:
            raise PrometheusNotFoundError(
                f"the package {PACKAGE} cannot be downloaded: {error}. Run `apt-get update` as root first"
            ) from error
    return find("promtool")


def _run(command: list[str], folder: str) -> None:
    subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300, check=True
    )


def _folder() -> Path:
    home = Path(os.environ.get("PENSTOCK_SERVERS", Path.home() / ".cache" / "penstock" / "servers"))
    return home / PACKAGE


if __name__ == "__main__":
    try:
        print(install())
    except PrometheusNotFoundError as error:
        sys.exit(str(error))
