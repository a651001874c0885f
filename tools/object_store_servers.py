"""Install the servers that are not Python packages: `python -m tools.object_store_servers [versitygw] [npm]`.

versitygw is built from Go's module registry (two minutes), Azurite and s3rver come from npm.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
NPM = ("azurite@3.35.0", "s3rver@3.7.1")


def install(names: list[str]) -> None:
    """Install the named servers; without names all."""
    home = Path(os.environ.get("PENSTOCK_SERVERS", Path.home() / ".cache" / "penstock" / "servers"))
    if not names or "versitygw" in names:
        environment = {**os.environ, "GOBIN": str(home / "bin")}
        subprocess.run(["go", "install", VERSITYGW], env=environment, check=True, timeout=1800)
    if not names or set(names) & {"npm", "azurite-blob", "s3rver"}:
        folder = home / "npm"
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NPM]
        subprocess.run(command, check=True, timeout=1800)


if __name__ == "__main__":
    install(sys.argv[1:])
