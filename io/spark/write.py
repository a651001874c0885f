"""`WriteToSpark`: each epoch's events as a DataFrame, given to a function in the driver."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.extras import require_extra
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.spark.json_rows import TARGET
from penstock.io.spark.options import SparkSinkOptions
from penstock.io.spark.rows import SparkRows
from penstock.io.spark.target import SparkFunctionTarget
from penstock.io.staging.publish_epochs import PublishEpochs


class WriteToSpark(SparkSinkOptions, WriteCheckedRows):
    """Give each epoch's change events to a function of a Spark DataFrame, as `foreachBatch` does.

        def save(dataframe, epoch_id):
            dataframe.write.mode("overwrite").parquet(f"/lake/orders/epoch={epoch_id}")

        events | WriteToSpark(save)

    The function runs in the driver, after the commit of the epoch that brought the events, with the session that
    spark-submit or the program made. If it raises, or the driver dies, it is called again with equal rows and an equal
    `epoch_id`. So a write that replaces what the same id has written, or that skips an id that the target knows, makes
    each change appear once. Ids rise; there are gaps, because an epoch without events calls nothing. A driver that was
    paused may call the function late, even after higher ids: a target that other programs read should store the id.

    Columns: `op`, `timestamp`, `key`, `before`, `after`, `metadata` (`penstock.event.change_rows`), or with
    ``layout="table"`` the change feed of one table. All are nullable, as in every DataFrame of files. The files of the
    DataFrame are deleted later; do not keep it after the function.

    `mark_complete` is called with a time when the function has returned for each change with an earlier commit time, at
    most every five seconds, also while the source is idle. A driver that was paused may call it late with an older
    time: the target must keep the time of the highest `record`.

    Order: rows of one key are in the order in which they arrived, within one partition of the DataFrame; after a
    shuffle sort by `metadata.version`. Epochs come in order. With `roll_seconds` each shard has its own time: only with
    ``shards=1`` are calls in the order of a whole table. What repeats: calls with an equal id, see above.
    Watermark: each event holds it until the function has returned. State: for each shard the events since the last
    commit, or of the last `roll_seconds`.

    Raises:
        UsageError: an argument is wrong, or an extra is missing (at construction). At run time: the session has a jar
            of Delta or Iceberg that was built for another Spark. The function is not called then.
    """

    def __post_init__(self) -> None:
        if not callable(self.for_each_epoch):
            raise UsageError(
                f"for_each_epoch must be a function (dataframe, epoch_id), got {self.for_each_epoch!r}."
            )
        if self.mark_complete is not None and not callable(self.mark_complete):
            raise UsageError(
                f"mark_complete must be a function (complete_until, record), got {self.mark_complete!r}: only the "
                "program knows the target. Pass a function that writes the time there, or ask the checkpoint (penstock "
                "wait)."
            )
        require_extra("parquet", "pyarrow")
        publish = PublishEpochs(
            SparkFunctionTarget(self.for_each_epoch, self.layout, self.mark_complete),
            SparkRows(self.images, self.layout),
            shards=self.shards,
            roll_seconds=self.roll_seconds,
            staging=self.staging,
            # Files, so that the executors read the rows, and not the driver.
            inline=False,
        )
        # JSON has more values than columns have.
        has_columns = self.images == "struct" or self.layout == "table"
        WriteCheckedRows.__init__(self, TARGET, "Publish", publish, always=has_columns, layout=self.layout)
