"""Penstock: database change streams through Apache Beam (Python) pipelines that run on Spark.

Users import from `io.spanner`, `io.bigtable`, `io.postgres`, `io.ydb`, `io.files`, `io.staging`, `event`, `transforms`,
`pipelines`, `publish`, `preflight`, `errors`, `runner`, `templates`, `emulators.spanner`, `emulators.bigtable`,
`emulators.simulated_spanner`, `emulators.ydb`. Each lists its public names in `__all__`. Everything else is internal.
"""

__version__ = "0.1.0"
