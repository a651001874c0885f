"""Find the browser of the tests, or install it: `python -m tools.browser`.

pip brings the driver (playwright) without a browser. Debian's package `chromium-headless-shell` is the smallest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium-headless-shell"


class BrowserNotFoundError(Exception):
    """There is no browser; the message says how to get one."""


def find() -> str:
    """Return the path of Chromium: $PENSTOCK_BROWSER, or the first of `NAMES` on PATH.

    Raises:
        BrowserNotFoundError: there is none.
    """
    given = os.environ.get("PENSTOCK_BROWSER")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BrowserNotFoundError(
            "No Chromium on PATH. Install it: on Debian as root `python -m tools.browser` does that. Or name "
            "its program in PENSTOCK_BROWSER"
        )
    return found


def install() -> str:
    """Return the path of Chromium; install Debian's package first if there is none, and this user is root.

    Raises:
        BrowserNotFoundError: there is none, and it cannot be installed.
    """
    try:
        return find()
    except BrowserNotFoundError:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["update"],
        ["install", "--yes", "--no-install-recommends", PACKAGE, "fonts-liberation"],
    ):
        # Another installation may hold the lock.
        command = [apt, "-qq", "-o", "DPkg::Lock::Timeout=120", *arguments]
        try:
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=300, check=True)
        except subprocess.SubprocessError as error:
            raise BrowserNotFoundError(f"Chromium cannot be installed: {error}") from error
    return find()


if __name__ == "__main__":
    try:
        print(install())
    except BrowserNotFoundError as error:
        sys.exit(str(error))
