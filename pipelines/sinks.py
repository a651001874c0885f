"""The sinks that every source can be combined with: one entry for each kind. Pure: a transform is imported when needed.

A new sink is one entry here. Its parameters, their defaults and their texts come from the signature and the docstring
of its transform.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from penstock.signatures import Argument, arguments_of


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One kind of sink.

    - `title`: the target in summaries, such as "Delta tables".
    - `transform`: `module:class`. `names`: the arguments of the transform that users may give.
    - `renamed`: the parameter of an argument whose name a source has too.
    - `guarantees`: sentences for the description of a template.
    - `systems`: the sources whose changes it takes.
    - `secrets`: arguments whose values are never shown; a value may be a reference.
    - `examples`: an example for each argument without a default.
    """

    title: str
    transform: str
    names: tuple[str, ...]
    guarantees: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    systems: tuple[str, ...] = ("spanner", "bigtable", "postgres", "ydb")
    secrets: frozenset[str] = frozenset()
    examples: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Import and return the transform."""
        module, name = self.transform.split(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found

    def parameter(self, name: str) -> str:
        """Return the name of the parameter for an argument of the transform."""
        return self.renamed.get(name, name)

    def arguments(self) -> dict[str, Argument]:
        """Return the arguments by the names of their parameters; those without a default come first."""
        known = arguments_of(self.load())
        return {self.parameter(name): replace(known[name], name=self.parameter(name)) for name in self.names}


def _target(*names: str) -> dict[str, str]:
    """Return other names for arguments that a source has too."""
    return {name: f"target_{name}" for name in names}


_ONCE = (
    "Every committed change is in the target exactly once, even after kill -9 of any process of the pipeline."
)
_RESUMES = "A stopped or killed pipeline continues from its checkpoint when it is started again with the same folder."
_NEWER = "A newer version of a row wins; a column that the source did not send keeps its value."

_FILES = ("output", "partition_by", "shards", "compression", "roll_seconds", "roll_bytes")

SINKS: Mapping[str, SinkKind] = {
    "avro": SinkKind(
        "Avro files",
        "penstock.io.files:WriteToAvro",
        _FILES,
        (_ONCE, "A file appears complete, in folders by table and event time, and never changes.", _RESUMES),
        examples={"output": "/data/lake"},
    ),
    "bigquery": SinkKind(
        "BigQuery tables",
        "penstock.io.bigquery:WriteToBigQuery",
        (
            "project",
            "dataset",
            "mode",
            "table",
            "schema_changes",
            "create_tables",
            "max_staleness_seconds",
            "nanoseconds",
            "endpoint",
            "write_endpoint",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        (
            "Mode log: every committed change is a row exactly once, even after kill -9 of any process.",
            "Mode current: BigQuery keeps the newest version of each row; a repeated or late change has no effect.",
            _RESUMES,
        ),
        renamed=_target("project", "table", "endpoint", "unavailable_seconds"),
        examples={
            "project": "my-project",
            "dataset": "shop",
            "endpoint": "http://localhost:9050",
            "write_endpoint": "localhost:9060",
        },
    ),
    "bigtable": SinkKind(
        "a Bigtable table",
        "penstock.io.bigtable:WriteToBigtable",
        (
            "project",
            "instance",
            "table",
            "app_profile",
            "version_family",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        ("Each change has its effect on its row once, in commit order, with its cell timestamps.", _RESUMES),
        renamed=_target("project", "instance", "table", "app_profile", "unavailable_seconds"),
        systems=("bigtable",),
        examples={"project": "my-project", "instance": "copy", "table": "users"},
    ),
    "delta": SinkKind(
        "Delta tables",
        "penstock.io.delta:WriteToDelta",
        ("uri", "mode", "schema_changes", "roll_seconds"),
        (_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        examples={"uri": "/data/lake/{table}"},
    ),
    "iceberg": SinkKind(
        "Iceberg tables",
        "penstock.io.iceberg:WriteToIceberg",
        ("table", "catalog", "mode", "schema_changes", "roll_seconds"),
        (_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        renamed={"table": "target_table"},
        examples={"table": "shop.{table}"},
    ),
    "parquet": SinkKind(
        "Parquet files",
        "penstock.io.files:WriteToParquet",
        _FILES,
        (_ONCE, "A file appears complete, in folders by table and event time, and never changes.", _RESUMES),
        examples={"output": "/data/lake"},
    ),
    "postgresql": SinkKind(
        "PostgreSQL tables",
        "penstock.io.sql:WriteToSql",
        (
            "dsn",
            "mode",
            "schema",
            "table",
            "schema_changes",
            "create_tables",
            "tombstone_seconds",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        (_ONCE, "The rows of a batch and its entry in the ledger are one transaction.", _NEWER, _RESUMES),
        renamed=_target("dsn", "schema", "table", "unavailable_seconds"),
        secrets=frozenset({"dsn"}),
        examples={"dsn": "${env:TARGET_DSN}"},
    ),
    "spanner": SinkKind(
        "Spanner tables",
        "penstock.io.spanner:WriteToSpanner",
        (
            "project",
            "instance",
            "database",
            "transaction_tag",
            "tombstone_days",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        (_ONCE, "The rows of a batch and its entry in the ledger are one transaction.", _NEWER, _RESUMES),
        renamed=_target("project", "instance", "database", "unavailable_seconds"),
        systems=("spanner", "postgres", "ydb"),
        examples={"project": "my-project", "instance": "main", "database": "copy"},
    ),
}
