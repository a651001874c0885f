"""How tests and tools install packages into environments that they make."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("--constraint", str(ROOT / "requirements" / "constraints.txt"))
"""Options for the versions that this checkout is tested with, which uv has in its cache."""


def install_command(python: Path | str, *arguments: str) -> list[str]:
    """Return a command that installs `arguments` into the environment of the interpreter `python`.

    With uv it takes seconds, because environments share files. An environment of the matrix has no uv: there pip
    installs them.
    """
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    # uv would take a wheel of this checkout from its cache, also after a change in the sources.
    shared = ["--quiet", "--refresh-package", "penstock", "--python", str(python)]
    return [str(uv), "pip", "install", *shared, *arguments]
