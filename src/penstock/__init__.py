"""Penstock: database change streams through Apache Beam (Python) pipelines that run on Spark.

    from penstock.io.spanner import ReadFromSpannerChangeStream
    from penstock.runner import PySparkRunner
    from penstock.transforms import ToChangeEvents

| Packages | Content |
|---|---|
| `io.spanner`, `io.bigtable`, `io.postgres`, `io.ydb` | sources; the first two and `io.sql` also write |
| `io.files`, `io.delta`, `io.iceberg`, `io.kafka`, `io.pubsub`, `io.bigquery`, `io.sql`, `io.spark` | sinks |
| `event`, `transforms` | the event that all sources share; filters, masks, formats |
| `runner` | `PySparkRunner`, its options and its result |
| `spark` | change streams as Spark data sources, without Beam |
| `publish`, `preflight`, `errors` | steps after a commit, checks before a start, all errors |
| `pipelines`, `templates` | the pipelines of the command line |
| `io.staging` | parts of sinks, for new ones |

Each package lists its public names in `__all__`. Everything else is internal.
"""

__version__ = "0.1.0"
