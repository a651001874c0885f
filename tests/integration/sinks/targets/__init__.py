"""The sinks of the kill campaigns: how each is started, written, disturbed, read back and compared with the source.

A class is one entry of `TARGETS`. Its `write` runs in the pipeline; all other methods run in the process that kills.
What a target has is read with its own client or with another engine, never with the code of the sink.
"""

from __future__ import annotations

from tests.integration.sinks.targets.databases import BigQuery, Bigtable, Spanner, Sql
from tests.integration.sinks.targets.files import Files, Spark
from tests.integration.sinks.targets.queues import Kafka, PubSub
from tests.integration.sinks.targets.tables import Delta, Iceberg
from tests.integration.sinks.targets.target import TargetUnderTest

TARGETS: dict[str, type[TargetUnderTest]] = {
    "files": Files,
    "spark": Spark,
    "delta": Delta,
    "iceberg": Iceberg,
    "sql": Sql,
    "kafka": Kafka,
    "pubsub": PubSub,
    "spanner": Spanner,
    "bigtable": Bigtable,
    "bigquery": BigQuery,
}
