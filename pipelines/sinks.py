"""The sinks of pipelines: one entry for each. An entry imports its transform, and Beam, when it is asked for it.

A new sink is one entry here. Its parameters are the options of its transform (`penstock.options`), except for those
that are `hidden`. The transform also has `preview` (`penstock.io.staging.preview`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock.io import bigquery, bigtable, delta, files, iceberg, kafka, pubsub, spanner, sql
from penstock.io.bigquery.options import BigQuerySinkOptions
from penstock.io.bigtable.sink.options import BigtableSinkOptions
from penstock.io.delta.options import DeltaSinkOptions
from penstock.io.files.options import AvroSinkOptions, FileOptions, ParquetSinkOptions
from penstock.io.iceberg.options import IcebergSinkOptions
from penstock.io.kafka.options import KafkaSinkOptions
from penstock.io.pubsub.options import PubSubSinkOptions
from penstock.io.spanner.sink.options import SpannerSinkOptions
from penstock.io.sql.options import SqlSinkOptions
from penstock.options import Argument, Options, arguments_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind:
    """One kind of sink.

    - `title`: the target in summaries, such as "Delta tables". `promise`: the end of the summary.
    - `writes`: sentences that say what is written; ``{native}`` is what native lines of the source are.
    - `guarantees`: sentences for the description of a template.
    - `options`: the options of the transform. `hidden`: those that are no parameters.
    - `renamed`: the parameter of an option whose name a source has too.
    - `systems`: the sources whose changes it takes.
    - `secrets`: options whose values are never shown; a value may be a reference.
    - `transform`: imports and returns the transform.
    - `takes`: *events*; *records*, of a format that users choose by its name; or *lines*, in a format or native.
    - `is_replica`: the target has one row for each primary key, unless the transform has a `mode` that is *log*.
    """

    title: str
    writes: str = "Writes the changes. They can be filtered, and columns chosen, renamed and masked."
    guarantees: tuple[str, ...]
    options: type[Options]
    hidden: frozenset[str] = frozenset({"staging"})
    renamed: Mapping[str, str] = field(default_factory=dict)
    systems: tuple[str, ...] = ("spanner", "bigtable", "postgres", "ydb")
    secrets: frozenset[str] = frozenset()
    transform: Callable[[], Callable[..., Any]]
    takes: Literal["events", "records", "lines"] = "events"
    is_replica: bool = False
    promise: str = ", exactly once"

    def needs_keys(self, mode: str | None) -> bool:
        """Return whether a table without a primary key cannot be written; `mode` is what users chose, if anything."""
        if mode is None and "mode" in (arguments := self.arguments()):
            mode = arguments["mode"].default
        return self.is_replica and mode != "log"

    def parameter(self, name: str) -> str:
        """Return the name of the parameter for an argument of the transform."""
        return self.renamed.get(name, name)

    def arguments(self) -> dict[str, Argument]:
        """Return the arguments that are parameters, by their names in the transform."""
        return {name: each for name, each in arguments_of(self.options).items() if name not in self.hidden}

    def parameters(self) -> dict[str, Argument]:
        """Return the same by the names of the parameters."""
        return {
            self.parameter(name): replace(each, name=self.parameter(name))
            for name, each in self.arguments().items()
        }


def _target(*names: str) -> dict[str, str]:
    """Return other names for arguments that a source has too."""
    return {name: f"target_{name}" for name in names}


_ONCE = (
    "Every committed change is in the target exactly once, even after kill -9 of any process of the pipeline."
)
_RESUMES = "A stopped or killed pipeline continues from its checkpoint when it is started again with the same folder."
_NEWER = "A newer version of a row wins; a column that the source did not send keeps its value."


SINKS: Mapping[str, SinkKind] = {
    "avro": SinkKind(
        title="Avro files",
        options=AvroSinkOptions,
        transform=lambda: files.WriteToAvro,
        hidden=frozenset({"table"}),
        guarantees=(
            _ONCE,
            "A file appears complete, in folders by table and event time, and never changes.",
            _RESUMES,
        ),
    ),
    "bigquery": SinkKind(
        title="BigQuery tables",
        options=BigQuerySinkOptions,
        transform=lambda: bigquery.WriteToBigQuery,
        guarantees=(
            "Mode log: every committed change is a row exactly once, even after kill -9 of any process.",
            "Mode current: BigQuery keeps the newest version of each row; a repeated or late change has no effect.",
            _RESUMES,
        ),
        renamed=_target("project", "table", "endpoint", "unavailable_seconds"),
        is_replica=True,
    ),
    "bigtable": SinkKind(
        title="a Bigtable table",
        options=BigtableSinkOptions,
        transform=lambda: bigtable.WriteToBigtable,
        hidden=frozenset({"emulator_host", "staging"}),
        guarantees=(
            "Each change has its effect on its row once, in commit order, with its cell timestamps.",
            _RESUMES,
        ),
        renamed=_target("project", "instance", "table", "app_profile", "unavailable_seconds"),
        systems=("bigtable",),
    ),
    "delta": SinkKind(
        title="Delta tables",
        options=DeltaSinkOptions,
        transform=lambda: delta.WriteToDelta,
        guarantees=(_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        secrets=frozenset({"storage_options"}),
        is_replica=True,
    ),
    "files": SinkKind(
        title="JSON Lines files, in one of several formats",
        writes="Writes lines to files below `<output>/<table>/<hour>/`. Without `format`, each line is {native}. With "
        "`format`, each line is a record of that format, and changes can be filtered, and columns chosen, renamed and "
        "masked.",
        options=FileOptions,
        transform=lambda: files.WriteToJsonLines,
        guarantees=(
            "Every change is in the published files exactly once, even after kill -9 of any process of the pipeline.",
            "Within (table, hour, shard), the order of file names and then of lines is the commit order of each key.",
            "A file appears complete, and never changes.",
            _RESUMES,
        ),
        takes="lines",
    ),
    "iceberg": SinkKind(
        title="Iceberg tables",
        options=IcebergSinkOptions,
        transform=lambda: iceberg.WriteToIceberg,
        guarantees=(_ONCE, "Each epoch is one commit of each table.", _NEWER, _RESUMES),
        renamed={"table": "target_table"},
        secrets=frozenset({"catalog_properties"}),
        is_replica=True,
    ),
    "kafka": SinkKind(
        title="topics of Kafka",
        options=KafkaSinkOptions,
        transform=lambda: kafka.WriteToKafka,
        hidden=frozenset({"format", "staging"}),
        guarantees=(
            "Consumers with isolation.level=read_committed see each committed change exactly once, in commit order for "
            "each key, even after kill -9 of any process of the pipeline.",
            _RESUMES,
        ),
        renamed=_target("unavailable_seconds"),
        secrets=frozenset({"config"}),
        takes="records",
    ),
    "parquet": SinkKind(
        title="Parquet files",
        options=ParquetSinkOptions,
        transform=lambda: files.WriteToParquet,
        hidden=frozenset({"table"}),
        guarantees=(
            _ONCE,
            "A file appears complete, in folders by table and event time, and never changes.",
            _RESUMES,
        ),
    ),
    "postgresql": SinkKind(
        title="PostgreSQL tables",
        options=SqlSinkOptions,
        transform=lambda: sql.WriteToSql,
        guarantees=(
            _ONCE,
            "The rows of a batch and its entry in the ledger are one transaction.",
            _NEWER,
            _RESUMES,
        ),
        renamed=_target("dsn", "schema", "table", "unavailable_seconds"),
        secrets=frozenset({"dsn"}),
        is_replica=True,
    ),
    "pubsub": SinkKind(
        title="topics of Pub/Sub",
        options=PubSubSinkOptions,
        transform=lambda: pubsub.WriteToPubSub,
        hidden=frozenset({"format", "staging"}),
        guarantees=(
            "Every committed change is published at least once. A repeated message has the same attribute penstock_id.",
            "The messages of a row have an ordering key, and are published in commit order.",
            _RESUMES,
        ),
        renamed=_target("project", "endpoint", "unavailable_seconds"),
        promise=", at least once",
        takes="records",
    ),
    "spanner": SinkKind(
        title="Spanner tables",
        options=SpannerSinkOptions,
        transform=lambda: spanner.WriteToSpanner,
        hidden=frozenset({"emulator_host", "staging"}),
        guarantees=(
            _ONCE,
            "The rows of a batch and its entry in the ledger are one transaction.",
            _NEWER,
            _RESUMES,
        ),
        renamed=_target("project", "instance", "database", "unavailable_seconds"),
        systems=("spanner", "postgres", "ydb"),
        is_replica=True,
    ),
}
