"""`WriteToSpark`: each epoch's events as a DataFrame, given to a function in the driver."""

from __future__ import annotations

import os

from penstock.errors import UsageError
from penstock.extras import require_extra
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.spark.json_rows import TARGET
from penstock.io.spark.rows import Images, SparkRows
from penstock.io.spark.target import ForEachEpoch, SparkFunctionTarget
from penstock.io.staging.publish_epochs import PublishEpochs


class WriteToSpark(WriteCheckedRows):
    """Give each epoch's change events to a function of a Spark DataFrame, as `foreachBatch` does.

        def save(dataframe, epoch_id):
            dataframe.write.mode("overwrite").parquet(f"/lake/orders/epoch={epoch_id}")

        events | WriteToSpark(save)

    The function runs in the driver, after the commit of the epoch that brought the events, with the session that
    spark-submit or the program made. If it raises, or the driver dies, it is called again with equal rows and an equal
    `epoch_id`. So a write that replaces what the same id has written, or that skips an id that the target knows, makes
    each change appear once. Ids rise; there are gaps, because an epoch without events calls nothing. A driver that was
    paused may call the function late, even after higher ids: a target that other programs read should store the id.

    Columns: `op`, `timestamp`, `key`, `before`, `after`, `metadata` (`penstock.event.change_rows`). All are nullable,
    as in every DataFrame of files. The files of the DataFrame are deleted later; do not keep it after the function.

    Order: rows of one key are in the order in which they arrived, within one partition of the DataFrame; after a
    shuffle sort by `metadata.version`. Epochs come in order. With `roll_seconds` each shard has its own time: only with
    ``shards=1`` are calls in the order of a whole table. What repeats: calls with an equal id, see above.
    Watermark: each event holds it until the function has returned. State: for each shard the events since the last
    commit, or of the last `roll_seconds`.

    Args:
        for_each_epoch: the function (dataframe, epoch_id). It must be picklable: a function of a module, or one that
            cloudpickle takes along.
        images: ``json``: `key`, `before` and `after` are JSON text, for events of any tables. ``struct``: they are
            structs, for events of one table.
        shards: how many files an epoch has at most, which are the partitions of the DataFrame.
        roll_seconds: how long events are collected before the function is called (processing time); 0: with each epoch.
        staging: a folder or URL for the files; None: in the checkpoint. All workers must reach it.

    Raises:
        UsageError: an argument is wrong, or an extra is missing (at construction). At run time: the session has a jar
            of Delta or Iceberg that was built for another Spark. The function is not called then.
    """

    def __init__(
        self,
        for_each_epoch: ForEachEpoch,
        *,
        images: Images = "json",
        shards: int = 4,
        roll_seconds: float = 0,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        if not callable(for_each_epoch):
            raise UsageError(
                f"for_each_epoch must be a function (dataframe, epoch_id), got {for_each_epoch!r}."
            )
        require_extra("parquet", "pyarrow")
        publish = PublishEpochs(
            SparkFunctionTarget(for_each_epoch),
            SparkRows(images),
            shards=shards,
            roll_seconds=roll_seconds,
            staging=staging,
            # Files, so that the executors read the rows, and not the driver.
            inline=False,
        )
        # JSON has more values than columns have.
        super().__init__(TARGET, "Publish", publish, always=images == "struct")
