"""Shuffles (target partition, frame) pairs. Uses internals of PySpark that 3.5 and 4.3 share.

As `RDD.partitionBy`, with another size of the blocks that go to the JVM. `partitionBy` collects ten pairs for each
partition, up to 1,000, before it sends the first block, and never learns how large they are. A frame has up to a
megabyte, so a worker would need 20 MB with two partitions and a gigabyte with a hundred.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.runner.protocol.frames import FRAME_BYTES

_PAIR_BYTES = 100
"""What a pair takes in memory besides its frame, about."""


def exchange(rdd: Any, partitions: int, serializer_of_blocks: Any = None) -> Any:
    """Return an RDD of the pairs of `rdd`, each in the partition that it names.

    `serializer_of_blocks`: the serializer of the JVM for the blocks (see `SparkJvm`); None: the one that Spark chooses.
    """
    if not hasattr(rdd, "_jrdd"):  # the RDD of a test, without a JVM
        return rdd.partitionBy(partitions, _target_partition)
    from pyspark import RDD
    from pyspark.serializers import BatchedSerializer

    context = rdd.ctx
    serializer = context._unbatched_serializer
    blocks = rdd.mapPartitionsWithIndex(_blocks_function(serializer), preservesPartitioning=True)
    # The function yields bytes for the JVM, by turns a number and a block.
    blocks._bypass_serializer = True
    pairs = context._jvm.PairwiseRDD(blocks._jrdd.rdd()).asJavaPairRDD()
    # Spark compares partitioners by this id. It would leave a shuffle out only if its input had this partitioner
    # already, and the output of a level has none.
    shuffled = pairs.partitionBy(context._jvm.PythonPartitioner(partitions, id(_target_partition)))
    if serializer_of_blocks is not None:
        shuffled.rdd().setSerializer(serializer_of_blocks)
    return RDD(context._jvm.PythonRDD.valueOfPair(shuffled), context, BatchedSerializer(serializer))


def _target_partition(target: int) -> int:
    return target


def _blocks_function(serializer: Any) -> Callable[[int, Iterable[tuple[int, bytes]]], Iterator[bytes]]:
    """Return the function of the tasks that send pairs to the JVM. Spark pickles it."""

    def run(_: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        from pyspark.serializers import pack_long

        for target, block in blocks_of(pairs):
            yield pack_long(target)
            yield serializer.dumps(block)

    return run


def blocks_of(pairs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Yield (target, pairs) in blocks. Over all targets at most about `FRAME_BYTES` of pairs wait."""
    waiting: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    size = 0
    for pair in pairs:
        waiting[pair[0]].append(pair)
        size += _PAIR_BYTES + len(pair[1])
        if size >= FRAME_BYTES:
            yield from waiting.items()
            waiting, size = defaultdict(list), 0
    yield from waiting.items()
