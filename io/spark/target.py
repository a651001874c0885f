"""The function of a user as a target: called in the driver with each epoch's DataFrame. Needs the extra `spark`."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from penstock.attempt import current_attempt
from penstock.errors import UsageError
from penstock.event.feed_rows import Layout
from penstock.event.model import ChangeEvent
from penstock.io.spark.options import ForEachEpoch, MarkComplete
from penstock.io.spark.table_jars import TABLE_FORMATS, refusal
from penstock.io.staging.batch import StagedBatch
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.preview import Written
from penstock.io.staging.table_notes import WrittenTable
from penstock.publish import MARK_SECONDS
from penstock.tables import TableSelection


@dataclass(frozen=True)
class SparkFunctionTarget:
    """See `penstock.io.staging.epochs.EpochTarget` and `MarkingTarget`."""

    function: ForEachEpoch
    layout: Layout = "events"
    marks: MarkComplete | None = None

    @property
    def name(self) -> str:
        return f"the function {getattr(self.function, '__name__', type(self.function).__name__)}"

    @property
    def mark_seconds(self) -> float | None:
        return None if self.marks is None else MARK_SECONDS

    @property
    def written(self) -> Collection[WrittenTable]:
        """No tables: only the function knows what it writes to."""
        return ()

    def mark_complete(self, mark: Mark, tables: Iterable[WrittenTable]) -> None:
        if self.marks is not None:
            self.marks(mark.until, mark.record)

    def check(self) -> None:
        """Nothing can be checked before Spark runs."""

    def selecting(self, selection: TableSelection) -> Self:
        """Return the target unchanged: calls with an equal id have equal rows, so what is staged stays as it is."""
        return self

    def preview(self, event: ChangeEvent) -> list[Written]:
        """Return the rows of the DataFrame for an event; see `penstock.io.staging.preview`."""
        from penstock.io.columnar.preview import rows_of_event

        return rows_of_event(event, event.source.table, "log", self.layout)

    def publish(self, delivery: EpochDelivery, batches: Sequence[StagedBatch]) -> None:
        # Other runners call the function in a worker, where there is no session.
        if current_attempt().generation == 0:
            raise UsageError(
                "WriteToSpark needs the driver of PySparkRunner: run the pipeline with --runner=PySparkRunner"
            )
        session = _session()
        refuse_unsuitable_jars(session)
        # The group of the epoch's own jobs, so that a cancelled pipeline cancels the function's jobs too.
        session.sparkContext.setJobGroup(f"penstock-{delivery.job}", f"epoch {delivery.epoch}", True)
        self.function(dataframe_of(session, batches), delivery.epoch)


def dataframe_of(session: Any, batches: Sequence[StagedBatch]) -> Any:
    """Return the DataFrame of an epoch, with the columns of all its files."""
    import pyarrow as pa
    import pyarrow.parquet

    # Footers only: the driver needs the columns, and the executors read the rows.
    local = all(batch.staged and "://" not in batch.output for batch in batches)
    if not local:
        # Spark may not have credentials for a store that Penstock has.
        tables = [pyarrow.parquet.read_table(io.BytesIO(batch.read())) for batch in batches]
        table = pa.concat_tables(tables, promote_options="permissive")
        return session.createDataFrame(table)
    paths = [f"{batch.output}/{batch.staged}" for batch in batches]
    schemas = [pyarrow.parquet.read_schema(path) for path in paths]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    # `schema` and not `mergeSchema`, which would start a job that reads all footers again.
    return session.read.schema(_spark_schema(schema)).parquet(*(f"file://{path}" for path in paths))


def refuse_unsuitable_jars(session: Any) -> None:
    """Refuse writers of Delta and Iceberg that were built for another Spark, before anything is written.

    Raises:
        UsageError: there is such a jar.
    """
    for format in TABLE_FORMATS:
        jar = _jar_of(session, format.class_name)
        if jar is not None and (reason := refusal(format, jar, session.version)):
            raise UsageError(reason)


def _session() -> Any:
    from pyspark.sql import SparkSession

    # It takes the context that runs the pipeline, so it is the session that spark-submit or the program made, if any.
    return SparkSession.builder.getOrCreate()


def _spark_schema(schema: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _jar_of(session: Any, class_name: str) -> str | None:
    """Return the path of the jar with a class; None if the session has no such class."""
    from py4j.protocol import Py4JJavaError

    thread = session.sparkContext._jvm.java.lang.Thread.currentThread()
    try:
        jar_class = thread.getContextClassLoader().loadClass(class_name)
    except Py4JJavaError:  # ClassNotFoundException
        return None
    return str(jar_class.getProtectionDomain().getCodeSource().getLocation().getPath())
