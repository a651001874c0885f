"""Data sources that cannot be exact yet, refused by name with the reason."""

from __future__ import annotations

from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource

from penstock.errors import UsageError


class _Refused(DataSource):
    format: ClassVar[str]
    why: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> Any:
        raise UsageError(f"{self.format}: {self.why}")


class BigtableDataSource(_Refused):
    """Bigtable gives an estimate of the time up to which a stream is complete, and changes may come after it."""

    format: ClassVar[str] = "penstock-bigtable"
    why: ClassVar[str] = (
        "Bigtable estimates the time up to which a stream is complete, so a batch could lose changes that come later. "
        "Read the stream with penstock.io.bigtable.ReadFromBigtableChangeStream, which keeps its continuation tokens, "
        "and write it to tables or with penstock.io.spark.WriteToSpark"
    )
