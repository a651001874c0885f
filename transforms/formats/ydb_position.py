"""Virtual timestamps of YDB, and the topic partition that a key belongs to. Pure.

Sources: YDB documentation, "Change Data Capture" (Virtual timestamps, Barriers); YDB source code,
`ydb/services/lib/sharding/sharding.cpp` and `TMd5Partitioner` in `ydb/core/tx/datashard`.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import msgspec

from penstock.errors import UsageError
from penstock.event import ChangeEvent

_MICROSECOND_BITS = 40
_NANOSECOND_BITS = 30
_LARGEST = 2**128 - 1
_ESCAPED = re.compile(rb'\\\\|\\"|\\u00[01][0-9a-f]')


class VirtualTimestamp(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The place of a transaction in YDB's order; all its changes share it. Virtual timestamps compare as tuples.

    `step`: the commit time in whole milliseconds since the epoch. `tx_id`: the number of the transaction in its
    step. For events of other sources than YDB it is below 2^50, so JSON consumers keep it exact.
    """

    step: int
    tx_id: int


def virtual_timestamp(event: ChangeEvent) -> VirtualTimestamp:
    """Return the virtual timestamp of an event; equal for all events of its transaction.

    YDB's own events keep theirs. For other sources `tx_id` holds the microseconds within the millisecond (from bit
    40 on), the nanoseconds within the microsecond (from bit 30 on), and 30 bits of a digest of the transaction id.
    So it grows with the commit time, and two runs and two workers agree on it. Two transactions that commit in one
    nanosecond have equal virtual timestamps in one of 2^30 cases.
    """
    version = event.version
    if event.source.system == "ydb" and version.transaction:
        return VirtualTimestamp(version.order, int(version.transaction))
    return _at(event.timestamp, _ordinal(version.transaction))


def barrier_timestamp(watermark: int) -> VirtualTimestamp:
    """Return the barrier for a watermark (nanoseconds): no event with a commit time of `watermark` is below it."""
    return _at(watermark, 0)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the topic partition of a record's key, the compact JSON array of the key values.

    The MD5 of the key, as a 128-bit number, falls into one of `partitions` slices of equal size. (It is not a
    modulo: YDB divides by the size of a slice.)

    Raises:
        UsageError: fewer than 1 partition.
    """
    if partitions < 1:
        raise UsageError(f"partition_of needs at least 1 partition, not {partitions}")
    # YDB writes control characters with capital hexadecimal digits, and the digest is of its text.
    text = _ESCAPED.sub(_with_capital_digits, key) if b"\\u00" in key else key
    number = int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16)
    return min(number // (_LARGEST // partitions), partitions - 1)


def _with_capital_digits(match: re.Match[bytes]) -> bytes:
    found = match[0]
    return found[:2] + found[2:].upper() if found[:2] == b"\\u" else found


@lru_cache(maxsize=4096)
def _ordinal(transaction: str) -> int:
    digest = hashlib.blake2b(transaction.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> (32 - _NANOSECOND_BITS)


def _at(timestamp: int, ordinal: int) -> VirtualTimestamp:
    step, rest = divmod(timestamp, 1_000_000)
    micros, nanos = divmod(rest, 1_000)
    return VirtualTimestamp(step, (micros << _MICROSECOND_BITS) + (nanos << _NANOSECOND_BITS) + ordinal)
