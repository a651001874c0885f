"""Names of staged and published files. Pure functions.

    <output>/<bucket>_<job>_<epoch>_<index>_<nonce><suffix>                          a published file
    <output>/.penstock-staging/<job>/<sink>/g<generation>_e<epoch>_<index>_<nonce>   a staged file
    <output>/.penstock-staging/<job>/<sink>/since_g<generation>_e<epoch>             a marker: see `marker_name`

A *bucket* is the common prefix of a group of published files, for example ``Orders/2026-11-21T16/03-of-16``. The
word comes from Apache Flink's file sink; it has nothing to do with the buckets of an object store. Names are relative
to the output and have "/" between their parts.

No two attempts share a name, so a repeated epoch never writes over what a failed try has staged or published.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from urllib.parse import quote

from penstock.attempt import Attempt

STAGING = ".penstock-staging"
"""Folder below the output where files are staged. Readers of data lakes skip names that begin with a dot."""

_STAGED = re.compile(r"g(\d+)_e(\d+)_\d+_[^/.]+")
_MARKER = re.compile(r"since_g(\d+)_e(\d+)")


def folder_name(name: str) -> str:
    """Return `name` as the name of one folder. Different names give different folders.

    ASCII letters, digits and ``_.-~`` stay; all other characters are percent-encoded as UTF-8. A leading dot or
    underscore is encoded too, because Spark, Hadoop and shells skip files and folders that begin with one.

    Raises:
        ValueError: the name is empty or longer than a file system accepts.
    """
    # `errors`: a name may hold bytes of a path that are not UTF-8.
    safe = quote(name, safe="", errors="surrogatepass")
    if safe[:1] in (".", "_"):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    if not 0 < len(safe) <= 255:
        raise ValueError(
            f"a folder's name must have 1 to 255 bytes, got {len(safe)} after percent-encoding; "
            "let the table function return a shorter or fuller name."
        )
    return safe


def sink_name(transform: str) -> str:
    """Return the name of the staging folder of a sink, from the full name of its transform in the pipeline.

    Two sinks of one pipeline may share an output; each one cleans up only its own staging folder.
    """
    # A digest, because full names of transforms contain slashes and may be long.
    return hashlib.blake2b(transform.encode(), digest_size=6).hexdigest()


def staging_folder(job: str, sink: str) -> str:
    """Return the folder where `sink` stages files of `job`."""
    return f"{STAGING}/{folder_name(job)}/{sink}"


def staged_name(sink: str, attempt: Attempt, index: int) -> str:
    """Return the name under which an attempt stages its `index`-th file."""
    # Fixed widths, so that names sort as numbers do.
    name = f"g{attempt.generation:010d}_e{attempt.epoch:012d}_{index:08d}_{attempt.nonce}"
    return f"{staging_folder(attempt.job, sink)}/{name}"


def final_name(bucket: str, attempt: Attempt, index: int, suffix: str) -> str:
    """Return the name under which the `index`-th file of an attempt is published.

    The names of one bucket sort by (job, epoch, index), which is the order in which their records were written.
    """
    return f"{bucket}_{folder_name(attempt.job)}_{attempt.epoch:012d}_{index:08d}_{attempt.nonce}{suffix}"


def staged_in(name: str) -> tuple[int, int] | None:
    """Return the (generation, epoch) in which a file was staged; None if `name` is not the name of a staged file."""
    found = _STAGED.fullmatch(name.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


def marker_name(staged: str) -> str | None:
    """Return the name of the marker that belongs into a staging folder which is created for the file `staged`.

    The marker tells in which (generation, epoch) the folder was created; `created_in` reads it.
    """
    origin = staged_in(staged)
    return None if origin is None else f"since_g{origin[0]:010d}_e{origin[1]:012d}"


def created_in(names: Iterable[str]) -> tuple[int, int] | None:
    """Return the (generation, epoch) that created the staging folder holding `names`; None if it has no marker."""
    found = [_MARKER.fullmatch(name) for name in names]
    # The oldest marker: several processes may have left one.
    return min(((int(each[1]), int(each[2])) for each in found if each), default=None)
