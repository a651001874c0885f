"""Key groups: they assign each key to a partition, stable over restarts and for any parallelism.

A stable hash of the encoded key selects one of a fixed number of key groups. Each partition owns a contiguous range of
groups. State is stored by key group, so a job can be rescaled without rewriting its state.
"""

from __future__ import annotations

import zlib

KEY_GROUPS = 128
"""Key groups of a new job. The number is fixed for the life of a checkpoint and limits its parallelism."""


def key_group(encoded_key: bytes, groups: int = KEY_GROUPS) -> int:
    """The group, 0 to `groups` - 1, of an encoded key (CRC-32, which no Python version or seed changes)."""
    return zlib.crc32(encoded_key) % groups


def partition_of(group: int, partitions: int, groups: int = KEY_GROUPS) -> int:
    """The partition, 0 to `partitions` - 1, that owns a key group; at most `groups` partitions own any."""
    return group * partitions // groups


def groups_of(partition: int, partitions: int, groups: int = KEY_GROUPS) -> range:
    """The key groups that a partition owns; empty where there are more partitions than groups."""
    first = -(-partition * groups // partitions)
    last = -(-(partition + 1) * groups // partitions)
    return range(first, last)
