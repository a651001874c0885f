"""Makes the data sources known to a Spark session."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError


def register(spark: Any) -> None:
    """Register `penstock-spanner`, `-postgres` and `-ydb` with a session, classic or Connect. It may be called again.

    The driver and the executors import Penstock, so it must be installed on all of them. `penstock-bigtable` is known
    too, and refuses to be read with its reason.

    Raises:
        UsageError: the session's PySpark has no Python data sources, which came with Spark 4.0.
    """
    try:
        import pyspark.sql.datasource  # noqa: F401
    except ImportError:
        raise UsageError(
            "Python data sources need PySpark 4.0 or newer: install it, or write the changes with "
            "penstock.io.spark.WriteToSpark"
        ) from None
    from penstock.spark.postgres import PostgresDataSource
    from penstock.spark.refused import BigtableDataSource
    from penstock.spark.spanner import SpannerDataSource
    from penstock.spark.ydb import YdbDataSource

    for source in (SpannerDataSource, PostgresDataSource, BigtableDataSource, YdbDataSource):
        spark.dataSource.register(source)
