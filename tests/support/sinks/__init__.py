"""The sinks of the kill campaigns: how each is started, written, disturbed, read back and compared with the source.

A class is one entry of `TARGETS`. Its `write` runs in the pipeline; all other methods run in the process that kills.
What a target has is read with its own client or with another engine, never with the code of the sink.
"""

from __future__ import annotations

from tests.support.sinks.databases import BigQuery, Bigtable, Spanner, Sql
from tests.support.sinks.files import Files, Spark
from tests.support.sinks.queues import Kafka, PubSub
from tests.support.sinks.tables import Delta, Iceberg
from tests.support.sinks.target import TargetUnderTest

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
