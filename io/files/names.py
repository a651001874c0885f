"""Buckets of the file sink: pure functions from tables, event times and keys to names.

    <table>/<yyyy-mm-ddThh>/<shard>-of-<shards>

The files of one bucket hold each of its keys in order: sort the names as text, then read line by line.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from functools import lru_cache

from penstock.compat import UTC
from penstock.io.staging.names import folder_name

NO_EVENT_TIME = "no-event-time"
"""The hour folder of records whose timestamp is Beam's minimum or outside the years 1 to 9999."""

Key = str | bytes | int | float | bool | None | tuple["Key", ...] | list["Key"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000


@lru_cache(maxsize=4096)
def bucket_name(table: str, hour: int, shard: int, shards: int) -> str:
    """Return the bucket ``<table>/<hour>/<shard>-of-<shards>``.

    The name includes the number of shards. If a pipeline is resumed with another number, the files that were open
    keep their old bucket.
    """
    return f"{folder_name(table)}/{hour_folder(hour)}/{shard_name(shard, shards)}"


def event_hour(timestamp_us: int) -> int:
    """Return the hour, counted from 1970-01-01T00 UTC, that contains `timestamp_us`. Hours include their start."""
    return timestamp_us // _HOUR_US


@lru_cache(maxsize=1024)
def hour_folder(hour: int) -> str:
    """Return the folder name of an hour of `event_hour`, for example ``2026-11-21T16``."""
    try:
        return (_EPOCH + timedelta(hours=hour)).isoformat(timespec="hours")[:13]
    # Beam's smallest timestamp, for example, is before year 1.
    except OverflowError:
        return NO_EVENT_TIME


def shard_name(shard: int, shards: int) -> str:
    """Return ``03-of-16``: `shard` counts from 0, and both numbers have as many digits as `shards`."""
    # Two digits at least, so that up to 100 shards sort as text.
    digits = max(2, len(str(shards)))
    return f"{shard:0{digits}d}-of-{shards:0{digits}d}"


def stable_hash(key: Key) -> int:
    """Return a hash of `key`, 0 to 2**32 - 1, that is the same in every process, run and version of Python.

    Raises:
        TypeError: the key is, or contains, something other than str, bytes, int, float, bool, None, tuple, list.
    """
    # Python's own `hash` differs in each process.
    return zlib.crc32(_canonical(key))


def _canonical(key: Key) -> bytes:
    """Return bytes that no other key has: a tag for the type, the length, the content."""
    if isinstance(key, str):
        # A lone surrogate is a possible text in Python.
        return _tagged(b"s", key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return _tagged(b"b", key)
    # `repr` keeps True and 1 apart, which are equal in Python.
    if key is None or isinstance(key, bool | int | float):
        return _tagged(b"v", repr(key).encode())
    if isinstance(key, tuple | list):
        return _tagged(b"t", b"".join(map(_canonical, key)))
    raise TypeError(
        f"the key function returned a {type(key).__name__}, which has no stable hash; "
        "return str, bytes, int, float, bool, None or a tuple of them."
    )


def _tagged(tag: bytes, content: bytes) -> bytes:
    # With the length in front no two lists of parts give equal bytes.
    return b"%b%d:%b" % (tag, len(content), content)
