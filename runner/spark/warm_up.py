"""A first job in the background, so that the first job of a pipeline finds workers and a JVM that has run a job.

The first Python job of a session starts the worker daemon, which imports Beam, and loads much of Spark's code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from penstock.runner.spark.exchange import exchange

logger = logging.getLogger(__name__)


def warm_up(spark_context: Any) -> None:
    """Run a job of the same form as an epoch: two levels, and an exchange of blocks between them."""
    try:
        spark_context.setJobGroup("penstock-start", "start of the Python workers")
        n = spark_context.defaultParallelism
        blocks = spark_context.parallelize(range(n), n).mapPartitionsWithIndex(_block)
        exchange(blocks, n).mapPartitionsWithIndex(_block).collect()
    except Exception as error:  # the pipeline's own job says what is wrong, and how to repair it
        logger.debug("the first job failed: %s", type(error).__name__)


def _block(partition: int, packets: Iterator[Any]) -> Iterator[tuple[int, bytes]]:
    for _ in packets:
        yield partition, b"block"
