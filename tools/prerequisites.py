"""Say where Java, the emulators, the browser and Prometheus are, or how to get them.

CI needs Java and the emulators: the exit code is 3 if one is missing. Browser and Prometheus are installed if that is
possible, see `tools.browser` and `tools.prometheus`; without them their tests are left out.
"""

from __future__ import annotations

import sys

from penstock.runner.spark.java import JavaNotFoundError, find_java
from penstock_emulators import bigtable as bigtable
from penstock_emulators import spanner as spanner
from tools import browser, prometheus


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
    try:
        print(f"Prometheus: {prometheus.install()}")
    except prometheus.PrometheusNotFoundError as error:
        print(f"Tests of the alerts are left out. {error}", file=sys.stderr)
    return missing


if __name__ == "__main__":
    sys.exit(main())
