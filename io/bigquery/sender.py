"""Opens the sender of a mode, with the two services of BigQuery that it needs."""

from __future__ import annotations

from penstock.io.bigquery.log_sender import LogSender
from penstock.io.bigquery.replica_sender import ReplicaSender
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.bigquery.warehouse import BigQueryWarehouse
from penstock.io.bigquery.write_api import BigQueryWriteApi


def open_sender(target: BigQueryTarget, skip_refused: bool) -> LogSender | ReplicaSender:
    """Return a sender; see `penstock.io.staging.connector.Connector.open`."""
    sender = LogSender if target.mode == "log" else ReplicaSender
    return sender(target, skip_refused, BigQueryWriteApi(target), BigQueryWarehouse(target))
