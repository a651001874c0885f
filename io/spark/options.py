"""The options of the Spark sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from penstock.event.feed_rows import Layout
from penstock.io.staging.options import StagingOptions
from penstock.options import options

ForEachEpoch = Callable[[Any, int], object]
"""A function of a DataFrame and the epoch's number, as the function of `foreachBatch`."""

MarkComplete = Callable[[datetime, int], object]
"""A function of a time and the number of a commit record."""

Images = Literal["json", "struct"]


@options
class SparkSinkOptions(StagingOptions):
    """The options of `WriteToSpark`."""

    for_each_epoch: ForEachEpoch = field(kw_only=False)
    """Function (dataframe, epoch_id). It must be picklable: a function of a module, or one that cloudpickle takes
    along."""
    images: Images = "json"
    """With json, `key`, `before` and `after` are JSON text, for events of any tables. With struct they are structs, for
    events of one table."""
    layout: Layout = "events"
    """With events, `op`, `timestamp`, `key`, `before`, `after`, `metadata`. With table, the columns of one table and
    `_change_type`, `_commit_version`, `_commit_timestamp`, `_not_sent`, as the data sources of Spark have them."""
    mark_complete: MarkComplete | None = None
    """Function (complete_until, record) that tells the target until which commit time it is complete. Picklable as the
    other one."""
    shards: int = 4
    """Number of files that an epoch has at most, which are the partitions of the DataFrame."""
