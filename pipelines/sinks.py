"""The sinks that every source can be combined with: one entry for each kind. Pure: a transform is imported when needed.

A new sink is one entry here. Its parameters, their defaults and their texts come from the signature and the docstring
of its transform, which also has `preview` (`penstock.io.staging.preview`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, get_origin

from penstock.options import Argument, arguments_of


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One kind of sink.

    - `title`: the target in summaries, such as "Delta tables".
    - `transform`: `module:class`. `names`: the arguments of the transform that users may give.
    - `renamed`: the parameter of an argument whose name a source has too.
    - `guarantees`: sentences for the description of a template.
    - `systems`: the sources whose changes it takes.
    - `secrets`: arguments whose values are never shown; a value may be a reference.
    - `examples`: an example for each argument without a default; of a mapping, ``name=value``.
    - `promise`: the end of the summary.
    - `has_format`: the transform takes a `format`, which users choose by its name.
    - `is_replica`: the target has one row for each primary key, unless the transform has a `mode` that is *log*.
    """

    title: str
    transform: str
    names: tuple[str, ...]
    guarantees: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    systems: tuple[str, ...] = ("spanner", "bigtable", "postgres", "ydb")
    secrets: frozenset[str] = frozenset()
    examples: Mapping[str, str] = field(default_factory=dict)
    has_format: bool = False
    is_replica: bool = False
    promise: str = ", exactly once"

    def load(self) -> Callable[..., Any]:
        """Import and return the transform."""
        module, name = self.transform.split(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found

    def needs_keys(self, mode: str | None) -> bool:
        """Return whether a table without a primary key cannot be written; `mode` is what users chose, if anything."""
        if mode is None and "mode" in self.names:
            mode = self.arguments()["mode"].default
        return self.is_replica and mode != "log"

    def parameter(self, name: str) -> str:
        """Return the name of the parameter for an argument of the transform."""
        return self.renamed.get(name, name)

    def arguments(self) -> dict[str, Argument]:
        """Return the arguments by the names of their parameters; those without a default come first."""
        known = arguments_of(self.load())
        found = {self.parameter(name): replace(known[name], name=self.parameter(name)) for name in self.names}
        for name, each in found.items():
            if get_origin(each.type) is Mapping:  # a signature has None, because {} could be changed
                found[name] = replace(each, default={})
        return found


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
            "credentials_file",
            "impersonate",
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
            "credentials_file": "/run/secrets/bigquery.json",
            "impersonate": "writer@my-project.iam.gserviceaccount.com",
            "endpoint": "http://localhost:9050",
            "write_endpoint": "localhost:9060",
        },
        is_replica=True,
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
        ("uri", "mode", "schema_changes", "tombstone_seconds", "roll_seconds", "storage_options"),
        (_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        secrets=frozenset({"storage_options"}),
        examples={
            "uri": "/data/lake/{table}",
            "storage_options": "AWS_ENDPOINT_URL=https://minio.example.com",
        },
        is_replica=True,
    ),
    "iceberg": SinkKind(
        "Iceberg tables",
        "penstock.io.iceberg:WriteToIceberg",
        (
            "table",
            "catalog",
            "mode",
            "schema_changes",
            "tombstone_seconds",
            "roll_seconds",
            "catalog_properties",
        ),
        (_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        renamed={"table": "target_table"},
        secrets=frozenset({"catalog_properties"}),
        examples={"table": "shop.{table}", "catalog_properties": "uri=${env:CATALOG_URI}"},
        is_replica=True,
    ),
    "kafka": SinkKind(
        "topics of Kafka",
        "penstock.io.kafka:WriteToKafka",
        (
            "bootstrap_servers",
            "topic",
            "guarantee",
            "create_topics",
            "partitions",
            "replication_factor",
            "topic_config",
            "ledger_topic",
            "config",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        (
            "Consumers with isolation.level=read_committed see each committed change exactly once, in commit order for "
            "each key, even after kill -9 of any process of the pipeline.",
            _RESUMES,
        ),
        renamed=_target("unavailable_seconds"),
        secrets=frozenset({"config"}),
        examples={
            "bootstrap_servers": "broker-1:9092",
            "topic_config": "cleanup.policy=compact",
            "config": "sasl.password=${env:KAFKA_PASSWORD}",
        },
        has_format=True,
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
        is_replica=True,
    ),
    "pubsub": SinkKind(
        "topics of Pub/Sub",
        "penstock.io.pubsub:WriteToPubSub",
        (
            "project",
            "topic",
            "ordering",
            "create_topics",
            "endpoint",
            "shards",
            "roll_seconds",
            "unavailable_seconds",
        ),
        (
            "Every committed change is published at least once. A repeated message has the same attribute penstock_id.",
            "The messages of a row have an ordering key, and are published in commit order.",
            _RESUMES,
        ),
        renamed=_target("project", "endpoint", "unavailable_seconds"),
        examples={
            "project": "my-project",
            "topic": "changes-{table}",
            "endpoint": "europe-west1-pubsub.googleapis.com:443",
        },
        promise=", at least once",
        has_format=True,
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
        is_replica=True,
    ),
}
