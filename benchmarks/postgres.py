"""All figures of PostgreSQL in one command: log reading and formatting, latency, log kept in an outage, snapshot rows.

    python benchmarks/postgres.py [--rows 200000] [--seconds 10] [--rounds 3] [--snapshot-rows 300000]

It runs `postgres_reader.py`, then `snapshots.py --only postgres`; each describes what it measures.
"""

from __future__ import annotations

import argparse

import postgres_reader
import snapshots


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", default="200000", help="of the log")
    parser.add_argument("--seconds", default="10", help="of the measurement of latency")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--snapshot-rows", default="300000")
    given = parser.parse_args()
    postgres_reader.main(["--rows", given.rows, "--seconds", given.seconds, "--rounds", given.rounds])
    snapshots.main(["--rows", given.snapshot_rows, "--only", "postgres"])


if __name__ == "__main__":
    main()
