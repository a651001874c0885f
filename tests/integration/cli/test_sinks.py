"""`penstock run` from Spanner to a broker of Kafka, and to emulators of Pub/Sub, BigQuery and an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import UTC

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.campaign, pytest.mark.slow(seconds=100)]

ORDERS = range(20)
Run = Callable[..., None]


@pytest.fixture
def run(start: Any, shop: Any, penstock: list[str], tmp_path: Path) -> Run:
    """Runs a template over 20 orders, until a few seconds after them."""

    def run_(template: str, *words: str, first: int, **sets: str) -> None:
        begun = datetime.now(UTC)  # not earlier: the change stream may have been created a moment ago
        shop.order(range(first, first + len(ORDERS)))
        end = datetime.now(UTC) + timedelta(seconds=3)
        values = {
            "project": "my-project",
            "instance": "main",
            "database": "shop",
            "change_stream": "OrdersStream",
            "roll_seconds": "0",
            "start": f"{begun:%Y-%m-%dT%H:%M:%S.%fZ}",
            "end": f"{end:%Y-%m-%dT%H:%M:%SZ}",
            **sets,
        }
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        folder = ["--checkpoint-dir", str(tmp_path / "checkpoint"), "--master", "local[2,4]"]
        program = start(*penstock, "run", template, *words, *flags, *folder)
        assert program.process.wait(180) == 0, program.output

    return run_


@pytest.mark.kafka
def test_spanner_to_kafka(run: Run) -> None:
    from penstock_emulators.kafka import KafkaBroker
    from tests.integration.kafka.conftest import read_all

    with KafkaBroker.start() as broker:
        values = {"bootstrap_servers": broker.address, "topic": "orders", "format": "envelope"}
        run("spanner-to-kafka", first=1000, **values, **{"config.client.id": "shop"})
        keys = [message.key() for message in read_all(broker.address, "orders")]
    assert len(keys) == len(set(keys)) == len(ORDERS)


@pytest.mark.pubsub
def test_spanner_to_pubsub(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud import pubsub_v1

    from penstock_emulators.pubsub import PubSubEmulator

    with PubSubEmulator.start() as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.host)
        topic = "projects/my-project/topics/orders"
        subscription = "projects/my-project/subscriptions/orders"
        pubsub_v1.PublisherClient().create_topic(name=topic)
        subscriber = pubsub_v1.SubscriberClient()
        subscriber.create_subscription(name=subscription, topic=topic)
        run("spanner-to-pubsub", first=2000, target_project="my-project", topic="orders", format="envelope")
        ids: set[str] = set()
        while len(ids) < len(ORDERS):
            found = subscriber.pull(subscription=subscription, max_messages=100, timeout=20)
            ids |= {each.message.attributes["penstock_id"] for each in found.received_messages}
    assert len(ids) == len(ORDERS)


@pytest.mark.bigquery
def test_spanner_to_bigquery(run: Run) -> None:
    from penstock.io.bigquery.clients import rest_client
    from penstock.io.bigquery.target import BigQueryTarget
    from penstock_emulators.bigquery import BigQueryEmulator

    with BigQueryEmulator.start() as emulator:
        addresses = {"endpoint": emulator.endpoint, "write_endpoint": emulator.write_endpoint}
        client = rest_client(BigQueryTarget("warehouse", "shop", **addresses))
        client.create_dataset("warehouse.shop")
        run(
            "spanner-to-bigquery",
            first=3000,
            target_project="warehouse",
            dataset="shop",
            target_endpoint=emulator.endpoint,
            write_endpoint=emulator.write_endpoint,
        )
        rows = client.query("SELECT op, key FROM shop.Orders").result()
        found = sorted((row["op"], json.dumps(row["key"])) for row in rows)
    assert found == [("CREATE", f'{{"OrderId": {number}}}') for number in range(3000, 3020)]


def test_spanner_to_delta_in_an_object_store_with_a_secret_of_the_job_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb
    from deltalake import DeltaTable

    from tests.support.object_stores.servers import BUCKET, MOTO

    with MOTO.start(tmp_path / "s3") as server:
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "${env:LAKE_KEY}",
        }
        monkeypatch.setenv("LAKE_KEY", "testsecret")
        uri = f"s3://{BUCKET}/lake/{{table}}"
        sets = {f"storage_options.{name}": value for name, value in options.items()}
        run("spanner-to-delta", first=4000, uri=uri, mode="current", **sets)
        known = options | {"AWS_SECRET_ACCESS_KEY": "testsecret"}
        rows = DeltaTable(uri.format(table="Orders"), storage_options=known).to_pyarrow_table()
        ((count,),) = duckdb.sql("select count(distinct OrderId) from rows").fetchall()
    assert count == rows.num_rows == len(ORDERS)
