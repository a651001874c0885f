"""Tables of Delta and Iceberg on an S3 server: repeats, two writers at once, and what a store refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog import load_catalog

from penstock.event import ChangeEvent
from penstock.io.columnar.data_files import manifest
from penstock.io.delta.errors import DeltaTargetError
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.errors import IcebergTargetError
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import Delivery, StagedBatch, TargetUnavailableError
from penstock.io.staging.retry import repeat_while_unavailable
from tests.support.object_stores.servers import BUCKET, KEYS, MOTO
from tests.unit.tables.histories import Writer
from tests.unit.tables.test_delta import batches, epoch

pytestmark = [pytest.mark.slow(seconds=20), pytest.mark.campaign]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with MOTO.start(tmp_path_factory.mktemp("s3")) as server:
        yield f"http://127.0.0.1:{server.port}"


def delta(endpoint: str, uri: str, **more: Any) -> DeltaTarget:
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", **KEYS}
    return DeltaTarget(uri, "current", "evolve", options, **more)


def iceberg(endpoint: str, folder: Path, bucket: str) -> IcebergTarget:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/{bucket}.db",
        "warehouse": f"s3://{bucket}/warehouse",
        "s3.endpoint": endpoint,
        "s3.access-key-id": KEYS["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "s3.region": KEYS["AWS_REGION"],
    }
    return IcebergTarget("shop.t", "prod", "current", "evolve", properties)


def publish(target: Any, events: list[ChangeEvent], number: int) -> None:
    """Publish an epoch as the sink does: again while another writer comes in between."""
    repeat_while_unavailable(
        lambda: target.publish(epoch(number), batches(events, number)), "", 60, lambda: 0, lambda _: None
    )


def rows(target: Any) -> list[tuple[Any, ...]]:
    if isinstance(target, DeltaTarget):
        opened = DeltaTable(target.uri, storage_options=dict(target.storage_options))
        table = pa.table(QueryBuilder().register("t", opened).execute("select * from t"))
    else:
        table = load_catalog("prod", **target.properties).load_table("shop.t").scan().to_arrow()
    found = duckdb.from_arrow(table).filter("not _penstock_deleted").project("id, name, amount")
    return found.order("all").fetchall()


@pytest.mark.parametrize("kind", ["delta", "delta-vectors", "iceberg"])
def test_epochs_that_two_drivers_publish_at_once_are_in_the_table_once(
    kind: str, endpoint: str, tmp_path: Path
):
    target: Any = (
        iceberg(endpoint, tmp_path, BUCKET)
        if kind == "iceberg"
        else delta(endpoint, f"s3://{BUCKET}/{kind}", deletion_vectors=kind == "delta-vectors")
    )
    writer, rng = Writer(3), random.Random(3)
    target.check()
    for number in range(2, 6):
        events = writer.changes(rng.randint(3, 9))
        with ThreadPoolExecutor(2) as drivers:
            list(drivers.map(lambda _, n=number, e=events: publish(target, e, n), range(2)))
        assert rows(target) == [row[:3] for row in writer.current()]


def test_a_bucket_that_does_not_exist_is_refused_before_anything_is_written(endpoint: str, tmp_path: Path):
    with pytest.raises(DeltaTargetError, match="bucket does not exist"):
        delta(endpoint, "s3://no-such-bucket/t").check()
    with pytest.raises(IcebergTargetError, match="bucket does not exist"):
        publish(iceberg(endpoint, tmp_path, "no-such-bucket"), Writer(1).changes(2), 2)


def test_a_server_that_does_not_listen_is_an_outage(tmp_path: Path):
    closed = "http://127.0.0.1:1"
    target = delta(closed, "s3://no-such-bucket/t")
    target.storage_options.update({"max_retries": "1", "retry_timeout": "1s"})  # type: ignore[attr-defined]
    for each in (target, iceberg(closed, tmp_path, BUCKET)):
        with pytest.raises(TargetUnavailableError):
            each.publish(epoch(2), batches(Writer(1).changes(2), 2))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tasks_write_the_files_of_a_log_with_the_options_of_the_table(
    endpoint: str, kind: str, tmp_path: Path
) -> None:
    uri = f"s3://{BUCKET}/log"
    target: Any = DeltaTarget(uri, "log", "evolve", dict(delta(endpoint, uri).storage_options))
    if kind == "iceberg":
        properties = dict(iceberg(endpoint, tmp_path, BUCKET).properties) | {
            "warehouse": f"s3://{BUCKET}/tasks"
        }
        target = IcebergTarget("shop.t", "test", "log", "evolve", properties)
    writer = Writer(5)
    for number in range(2, 5):
        files = [target.write_file(each) for each in target.plan_files(writer.changes(30), str(number))]
        content = manifest("", files)
        delivery = Delivery("sink", "job", 0, 1, 1, number)
        batch = StagedBatch(delivery, 0, len(content), 0, content=content)
        assert target.publish_files(epoch(number), [batch]) == [each.path for each in files]
    orphan = target.write_file(target.plan_files(writer.changes(1), "5")[0])
    paths = [each.path for each in (orphan, files[0])]
    names = [(orphan.table, path.rpartition("/")[2]) for path in paths]
    target.delete_unnamed(names)
    target.delete_unnamed(names)
    opened = target._open(orphan.table)
    folder = target._files(orphan.table, opened).folder
    assert [folder.length(path) for path in paths] == [None, files[0].length]
    table = opened.to_pyarrow_table() if kind == "delta" else opened.scan().to_arrow()
    assert duckdb.from_arrow(table).project("metadata.order").order("all").fetchall() == [
        (number * 1000,) for number in range(1, 91)
    ]
