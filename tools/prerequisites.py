"""Say where Java and the Spanner emulator are, or how to get them (exit code 3)."""

from __future__ import annotations

import sys

from penstock.io.spanner import emulator
from penstock.runner.java import JavaNotFoundError, find_java


def main() -> int:
    missing = 0
    for name, find, error_type in (
        ("Java", find_java, JavaNotFoundError),
        ("Spanner emulator", emulator.find_binary, emulator.EmulatorNotFoundError),
    ):
        try:
            print(f"{name}: {find()}")
        except error_type as error:
            print(f"{name} is missing. {error}", file=sys.stderr)
            missing = 3
    return missing


if __name__ == "__main__":
    sys.exit(main())
