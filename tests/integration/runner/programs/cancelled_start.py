"""Cancel a pipeline while the daemon of its workers starts, let the daemon die, and run another pipeline.

python -m tests.integration.runner.programs.cancelled_start FOLDER

PYSPARK_PYTHON is a program that creates FOLDER/starting, waits for FOLDER/die and ends, the first time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import apache_beam as beam

from penstock.runner import PySparkRunner
from tests.support.waiting import wait_until


def main() -> None:
    folder = Path(sys.argv[1])
    first = beam.Pipeline(runner=PySparkRunner())
    _ = first | beam.Create([1])
    result = first.run()
    wait_until((folder / "starting").exists)
    result.cancel()
    (folder / "die").touch()
    for _ in range(2):
        with beam.Pipeline(runner=PySparkRunner()) as second:
            _ = second | beam.Create([1])
    print("ran")


if __name__ == "__main__":
    main()
