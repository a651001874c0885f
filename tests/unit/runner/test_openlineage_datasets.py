"""What a pipeline reads and writes, by OpenLineage's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import pytest

from penstock.datasets import Dataset, ReadTable, host_and_port, postgres_dataset
from penstock.event import ChangeEvent, Source
from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock.io.files import WriteToJsonLines, WriteToParquet
from penstock.io.kafka import WriteToKafka
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.sql import WriteToSql
from penstock.io.staging.folder_datasets import folder_dataset
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.pipelines.sinks import SINKS
from penstock.pipelines.source_to_sink import build
from penstock.runner.openlineage.pipeline_datasets import Datasets, PipelineDatasets
from penstock.tables import SourceTable, TableSelection
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.event_envelope import EventFormat
from tests.unit.pipelines.examples import made_with_examples

ORDERS, ITEMS = (
    Source("postgresql", "", "shop", "sales", "orders"),
    Source("postgresql", "", "shop", "", "items"),
)


class Read(beam.PTransform):
    """A source that reads some tables, or cannot say which."""

    def __init__(self, *tables: Source, error: Exception | None = None) -> None:
        super().__init__()
        self._tables, self._error = tables, error

    def expand(self, pbegin: Any) -> Any:
        return pbegin | beam.Create([1]) | beam.Map(lambda _: _).with_output_types(ChangeEvent)

    def tables_read(self) -> list[ReadTable]:
        if self._error:
            raise self._error
        return [ReadTable(each, Dataset("read", each.qualified_table)) for each in self._tables]


def datasets(**branches: tuple[beam.PTransform, beam.PTransform]) -> Datasets:
    pipeline = beam.Pipeline()
    for name, (read, write) in branches.items():
        _ = pipeline | f"{name}In" >> read | f"{name}Out" >> write
    return PipelineDatasets.of(pipeline).ask()


def written(sink: beam.PTransform, *tables: Source) -> list[tuple[str, str]]:
    found = datasets(Only=(Read(*tables), sink))
    return [(each.namespace, each.name) for _, each in found.outputs]


EXPECTED: dict[str, Sequence[tuple[str, str]]] = {
    "avro": [("file", "/data/lake/sales.orders"), ("file", "/data/lake/items")],
    "bigquery": [("bigquery", "my-project.shop.orders"), ("bigquery", "my-project.shop.items")],
    "bigtable": [("bigtable://my-project:copy", "users")],
    "delta": [("file", "/data/lake/orders"), ("file", "/data/lake/items")],
    "files": [("file", "/data/changes/Orders")],
    "iceberg": [("iceberg://default", "shop.orders"), ("iceberg://default", "shop.items")],
    "kafka": [
        ("kafka://broker-1:9092", "shop.sales.orders"),
        ("kafka://broker-1:9092", "shop.items"),
    ],
    "parquet": [("file", "/data/lake/sales.orders"), ("file", "/data/lake/items")],
    "postgresql": [
        ("postgres://db.example.com:5432", "shop.public.orders"),
        ("postgres://db.example.com:5432", "shop.public.items"),
    ],
    "pubsub": [
        ("pubsub", "topic:my-project:changes-orders"),
        ("pubsub", "topic:my-project:changes-items"),
    ],
    "spanner": [
        ("spanner://my-project:main", "copy.sales.orders"),
        ("spanner://my-project:main", "copy.items"),
    ],
}


@pytest.mark.parametrize(("name", "kind"), SINKS.items(), ids=SINKS)
def test_every_sink_of_the_templates_names_what_it_writes(name: str, kind: Any) -> None:
    assert written(made_with_examples(kind), ORDERS, ITEMS) == EXPECTED[name]


SPANNER = {"project": "p", "instance": "i", "database": "d", "change_stream": "All"}
POSTGRES = {"dsn": "postgresql://u:hunter2@db:6432/shop", "publication": "p", "slot": "s"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            ReadFromSpannerChangeStream(**SPANNER),
            [("spanner://p:i", "d.sales.orders"), ("spanner://p:i", "d.items")],
        ),
        (
            ReadFromPostgresChangeStream(**POSTGRES),
            [("postgres://db:6432", "shop.sales.orders"), ("postgres://db:6432", "shop.public.items")],
        ),
        (ReadFromBigtableChangeStream(project="p", instance="i", table="t"), [("bigtable://p:i", "t")]),
    ],
    ids=["spanner", "postgres", "bigtable"],
)
def test_every_source_names_its_tables_with_their_columns(
    source: Any, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = "public" if "postgres" in type(source).__module__ else ""
    tables = [SourceTable("sales", "orders", ("id", "n")), SourceTable(default, "items", ("id",))]
    monkeypatch.setattr(type(source), "source_tables", lambda self: tables, raising=False)
    found = datasets(Only=(source, beam.Map(print))).inputs
    assert [(each.namespace, each.name) for each in found] == expected
    if len(found) == 2:
        assert [each.columns for each in found] == [("id", "n"), ("id",)]
    assert "hunter2" not in repr(found)


def test_ydb_tables_are_named_by_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    class Described:
        class table:  # noqa: N801
            columns = ()

    source = ReadFromYdbChangefeed(
        endpoint="grpcs://ydb.example.com:2135",
        database="/prod/shop",
        table="sales/orders",
        changefeed="feed",
    )
    monkeypatch.setattr(type(source).bounded_fn, "check", lambda self, stream: Described)
    (found,) = datasets(Only=(source, beam.Map(print))).inputs
    assert (found.namespace, found.name) == ("ydb://ydb.example.com:2135", "/prod/shop/sales/orders")


def test_a_sink_writes_only_the_tables_that_reach_it() -> None:
    found = datasets(
        One=(Read(ORDERS), WriteToParquet("/one")),
        Two=(Read(ITEMS), WriteToParquet("/two")),
    )
    assert [each.name for each in found.inputs] == ["sales.orders", "items"]
    assert [(step.partition("/")[0], each.name) for step, each in found.outputs] == [
        ("OneOut", "/one/sales.orders"),
        ("TwoOut", "/two/items"),
    ]


@pytest.mark.parametrize(
    ("sink", "given", "expected"),
    [
        ("files", {"output": "/out"}, ["/out/sales.orders", "/out/people"]),
        ("files", {"output": "/out", "format": "debezium"}, ["/out/sales.orders", "/out/people"]),
        ("kafka", {"bootstrap_servers": "broker", "without_tables": ["people"]}, ["d.sales.orders"]),
        (
            "delta",
            {"uri": "/lake/{table}", "dead_letters": "/letters"},
            ["/lake/orders", "/lake/people", "/letters/dead-letters"],
        ),
    ],
)
def test_a_template_writes_the_tables_of_its_source(
    sink: str, given: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [SourceTable("sales", "orders", ("id",)), SourceTable("", "people", ("id",))]
    monkeypatch.setattr(ReadFromSpannerChangeStream, "source_tables", lambda self: tables)
    pipeline = beam.Pipeline()
    build(pipeline, "spanner", sink, {**SPANNER, **given})
    found = PipelineDatasets.of(pipeline).ask()
    assert [each.name for each in found.inputs] == ["d.sales.orders", "d.people"]
    assert sorted(each.name for _, each in found.outputs) == sorted(expected)


def test_tables_that_a_sink_leaves_out_are_no_outputs() -> None:
    sink = WriteToSql("host=db dbname=shop", mode="current").selecting(TableSelection((), ("items",)))
    assert written(sink, ORDERS, ITEMS) == [("postgres://db:5432", "shop.public.orders")]


def test_without_known_tables_a_sink_of_files_writes_its_output() -> None:
    assert written(WriteToParquet("/data/lake")) == [("file", "/data/lake")]
    assert written(WriteToJsonLines("/data/out", table=str), ORDERS) == [("file", "/data/out")]
    assert written(WriteToSql("host=db dbname=shop", mode="log")) == []


def test_a_source_that_does_not_answer_leaves_out_its_tables_and_what_follows_from_them() -> None:
    found = datasets(
        One=(Read(ORDERS), WriteToParquet("/one")),
        Two=(Read(error=OSError("no route")), WriteToParquet("/two")),
    )
    assert [each.name for each in found.inputs] == ["sales.orders"]
    assert (found.outputs, found.complete) == ((), False)


def test_topics_are_those_of_the_format() -> None:
    kafka = [("kafka://broker:9092", "shop.sales.orders")]
    for format in (DebeziumFormat("shop"), EventFormat("shop")):
        assert written(WriteToKafka("broker,other:1", format=format), ORDERS) == kafka
        assert written(WriteToKafka("broker", format=format, topic="{topic}-{table}"), ORDERS) == [
            ("kafka://broker:9092", "shop.sales.orders-orders")
        ]
    assert written(WriteToKafka("broker", format=lambda event: []), ORDERS) == []


@pytest.mark.parametrize(
    ("dsn", "namespace", "name"),
    [
        ("host=a,b port=1,2 dbname=shop password=hunter2", "postgres://a:1", "shop.s.t"),
        ("postgresql://u:hunter2@a:7/shop", "postgres://a:7", "shop.s.t"),
        ("host=/var/run/postgresql dbname=shop", "postgres://localhost:5432", "shop.s.t"),
        ("user=ada password=hunter2", "postgres://localhost:5432", "ada.s.t"),
    ],
)
def test_a_connection_string_gives_server_and_database_only(
    dsn: str, namespace: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(variable, raising=False)
    assert postgres_dataset(dsn, "s", "t") == Dataset(namespace, name)


def test_libpqs_variables_stand_in_for_what_a_connection_string_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"HOST": "db", "PORT": "7", "DATABASE": "shop"}.items():
        monkeypatch.setenv(f"PG{name}", value)
    assert postgres_dataset("", "s", "t") == Dataset("postgres://db:7", "shop.s.t")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/data/lake", ("file", "/data/lake/t")),
        ("file:///data/lake", ("file", "/data/lake/t")),
        ("s3://lake/shop?region=eu-west-1", ("s3://lake", "shop/t")),
        ("s3a://lake", ("s3://lake", "t")),
        ("gs://lake/shop", ("gs://lake", "shop/t")),
        ("az://lake/shop?account=acme", ("abfss://lake@acme.dfs.core.windows.net", "shop/t")),
        ("abfss://lake@acme.dfs.core.windows.net/shop", ("abfss://lake@acme.dfs.core.windows.net", "shop/t")),
        ("hdfs://ada:hunter2@node:8020/shop", ("hdfs://node:8020", "shop/t")),
    ],
)
def test_folders_are_named_by_their_store(location: str, expected: tuple[str, str]) -> None:
    found = folder_dataset(location, "t")
    assert (found.namespace, found.name) == expected


def test_the_root_of_a_bucket_has_a_name() -> None:
    assert folder_dataset("s3://lake") == Dataset("s3://lake", "/")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("broker", "broker:9092"),
        ("a:1,b:2", "a:1"),
        ("PLAINTEXT://ada:hunter2@a:1/x", "a:1"),
        ("[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:9092"),
    ],
)
def test_an_address_is_its_first_host_and_port(address: str, expected: str) -> None:
    assert host_and_port(address, 9092) == expected
