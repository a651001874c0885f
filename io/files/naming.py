"""What files are called: pure functions from tables, event times, keys and attempts to names.

    <output>/<table>/<yyyy-mm-ddThh>/<shard>-of-<shards>_<job>_<epoch>_<index>_<nonce>.jsonl
    <output>/.penstock-staging/<job>/<sink>/g<generation>_e<epoch>_<index>_<nonce>.jsonl
    <output>/.penstock-staging/<job>/<sink>/since_g<generation>_e<epoch>/            who made the folder

Everything up to the shard is the *lane* of a line: the order in which a key's lines are kept is the order of
names, then of lines, within one lane. Names are relative to the output folder, with "/" between their parts.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from urllib.parse import quote

from penstock.publish import Attempt

STAGING = ".penstock-staging"
"""Folder under the output where files are composed. Data lakes' readers skip names that begin with a dot."""

NO_EVENT_TIME = "no-event-time"
"""The hour folder of lines whose timestamp is Beam's minimum or lies outside the years 1 to 9999."""

Key = str | bytes | int | float | bool | None | tuple["Key", ...] | list["Key"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_STAGED = re.compile(r"g(\d+)_e(\d+)_\d+_[^/]+\.jsonl")
_SINCE = re.compile(r"since_g(\d+)_e(\d+)")


def folder_name(name: str) -> str:
    """Return `name` as one folder's name: two names never share a folder, and no reader overlooks one.

    ASCII letters, digits and ``_.-~`` stay, everything else is percent-encoded as UTF-8; so is a leading
    dot or underscore, because Spark, Hadoop and shells skip files and folders that begin so.

    Raises:
        ValueError: the name is empty or longer than a file system takes.
    """
    safe = quote(name, safe="", errors="surrogatepass")
    if safe[:1] in (".", "_"):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    if not 0 < len(safe) <= 255:
        raise ValueError(
            f"a folder's name must have 1 to 255 bytes, got {len(safe)} after percent-encoding; "
            "let the table function return a shorter or fuller name."
        )
    return safe


@lru_cache(maxsize=1024)
def hour_folder(hour: int) -> str:
    """Return the folder name of an event hour, counted from 1970-01-01T00 UTC: ``2026-11-21T16``."""
    try:
        return (_EPOCH + timedelta(hours=hour)).isoformat(timespec="hours")[:13]
    except OverflowError:
        return NO_EVENT_TIME


def stable_hash(key: Key) -> int:
    """Return a hash of `key` (0 to 2**32 - 1) that is the same in every process, run and Python version.

    Raises:
        TypeError: the key is, or holds, something other than str, bytes, int, float, bool, None, tuple, list.
    """
    return zlib.crc32(_canonical(key))


def _canonical(key: Key) -> bytes:
    if isinstance(key, str):
        return _tagged(b"s", key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return _tagged(b"b", key)
    if key is None or isinstance(key, bool | int | float):
        return _tagged(b"v", repr(key).encode())
    if isinstance(key, tuple | list):
        return _tagged(b"t", b"".join(map(_canonical, key)))
    raise TypeError(
        f"the key function gave a {type(key).__name__}, which has no stable hash; "
        "return str, bytes, int, float, bool, None or a tuple of them."
    )


def _tagged(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(content), content)


def shard_name(shard: int, shards: int) -> str:
    """Return ``03-of-16``: `shard` counts from 0, and both have as many digits as `shards`."""
    digits = max(2, len(str(shards)))
    return f"{shard:0{digits}d}-of-{shards:0{digits}d}"


@lru_cache(maxsize=4096)
def lane(table: str, hour: int, shard: int, shards: int) -> str:
    """Return the lane ``<table>/<hour>/<shard>-of-<shards>``: what all names of its files begin with.

    The number of shards is part of it, so that a pipeline that is resumed with another number still names
    what it had open honestly.
    """
    return f"{folder_name(table)}/{hour_folder(hour)}/{shard_name(shard, shards)}"


def event_hour(timestamp_us: int) -> int:
    """Return the hour, counted from 1970, that holds the event time `timestamp_us` (its start inclusive)."""
    return timestamp_us // _HOUR_US


def sink_name(transform: str) -> str:
    """Return the staging folder of the sink that is called `transform` (its full name in the pipeline).

    Two sinks of one pipeline may share an output folder; each cleans only its own staging folder.
    """
    return hashlib.blake2b(transform.encode(), digest_size=6).hexdigest()


def staging_folder(job: str, sink: str) -> str:
    """Return the folder where `sink` stages files in `job`."""
    return f"{STAGING}/{folder_name(job)}/{sink}"


def staged_name(sink: str, attempt: Attempt, index: int) -> str:
    """Return where an attempt stages its `index`-th file; no other attempt ever uses the name."""
    name = f"g{attempt.generation:010d}_e{attempt.epoch:012d}_{index:08d}_{attempt.nonce}.jsonl"
    return f"{staging_folder(attempt.job, sink)}/{name}"


def staged_in(name: str) -> tuple[int, int] | None:
    """Return the (generation, epoch) that staged the file called `name`; None if it is no staged file."""
    found = _STAGED.fullmatch(name.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


def since_name(name: str) -> str | None:
    """Return the folder that says in a staging folder that whoever stages `name` has made it."""
    origin = staged_in(name)
    return None if origin is None else f"since_g{origin[0]:010d}_e{origin[1]:012d}"


def made_in(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the (generation, epoch) that made the staging folder with these names; None if none says so."""
    found = [_SINCE.fullmatch(name) for name in names]
    return min(((int(each[1]), int(each[2])) for each in found if each), default=None)


def final_name(lane: str, attempt: Attempt, index: int) -> str:
    """Return the name under which readers will see an attempt's `index`-th file of `lane`.

    Names of one lane sort by (job, epoch, index): the order in which their lines were written. The nonce
    makes them write-once: an epoch that is repeated never meets a name of the failed try.
    """
    return f"{lane}_{folder_name(attempt.job)}_{attempt.epoch:012d}_{index:08d}_{attempt.nonce}.jsonl"
