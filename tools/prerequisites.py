"""Say where Java, the emulators and the browser are, or how to get them.

CI needs Java and the emulators: the exit code is 3 if one is missing. The browser is installed if that is possible, see
`tools.browser`; without it the tests in a browser are left out.
"""

from __future__ import annotations

import sys

from penstock.runner.spark.java import JavaNotFoundError, find_java
from penstock_emulators import bigtable as bigtable
from penstock_emulators import spanner as spanner
from tools import browser


def main() -> int:
    missing = 0
    for name, find, error_type in (
        ("Java", find_java, JavaNotFoundError),
        ("Spanner emulator", spanner.find_binary, spanner.EmulatorNotFoundError),
        ("Bigtable emulator", bigtable.find_binary, bigtable.EmulatorNotFoundError),
    ):
        try:
            print(f"{name}: {find()}")
        except error_type as error:
            print(f"{name} is missing. {error}", file=sys.stderr)
            missing = 3
    try:
        print(f"Browser: {browser.install()}")
    except browser.BrowserNotFoundError as error:
        print(f"Tests in a browser are left out. {error}", file=sys.stderr)
    return missing


if __name__ == "__main__":
    sys.exit(main())
