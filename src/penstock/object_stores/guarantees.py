"""Try out whether a store gives the guarantees that a checkpoint and an output need.

| guarantee | what would happen without it |
|---|---|
| of several conditional creates one succeeds, and the object stays as it is | two drivers commit one record |
| a read after a write returns it | a driver takes over an old record |
| a read after a delete finds nothing | publishing takes a removed staged file for an existing one |
| a listing after a write contains it | a take-over begins below the last record, and tries again |

Trying is the only way to know: some servers accept the header of a conditional put and overwrite the object.
"""

from __future__ import annotations

import uuid

from penstock.errors import UsageError
from penstock.object_stores.store import ObjectStore, in_parallel

PROBE = ".penstock-probe"
"""Folder of the objects that a check creates and deletes."""

RACERS = 8
"""Number of creates of one object at the same time. Some servers check the condition, and write a moment later."""


CONFIRMING_RACES = 3
"""Number of further races after one with several winners. The store is refused if one of them has several too."""


class UnsuitableStoreError(UsageError):
    """The store does not give a guarantee that exactly-once output needs."""


def check_guarantees(store: ObjectStore, nonce: str | None = None) -> None:
    """Create, create again, read, list and delete small objects below the prefix of the store: about 25 requests.

    Raises:
        UnsuitableStoreError: the store lacks a guarantee; the message names it.
        StoreError: the store cannot be used.
    """
    # A separate folder: some S3 servers on disks refuse the key `a` while there is `a/b`.
    key = f"{PROBE}/{nonce or uuid.uuid4().hex}"
    races = [f"{key}-race-{number}" for number in range(1 + CONFIRMING_RACES)]
    if not store.create(key, b"first " + key.encode()):
        raise _unsuitable(store, "a create of a new object said that it exists")
    try:
        if store.create(key, b"second"):
            raise _unsuitable(
                store,
                "a conditional put (If-None-Match) of an existing object succeeded: it overwrote the object",
            )
        if store.read(key) != b"first " + key.encode():
            raise _unsuitable(store, "a refused conditional put changed the object")
        # A second winner is confirmed by more races: an answer that was lost on the way may look like one, and a
        # refusal stops a pipeline.
        if not (_has_one_winner(store, races[0]) or all(_has_one_winner(store, each) for each in races[1:])):
            raise _unsuitable(store, "several conditional puts of one new object succeeded at the same time")
        if key.rpartition("/")[2] not in {each.name for each in store.list_objects(PROBE)}:
            raise _unsuitable(store, "a listing right after a write does not contain the object")
    finally:
        store.delete([key, *races])
    if store.exists(key):
        raise _unsuitable(store, "an object can be read after its deletion")


def _has_one_winner(store: ObjectStore, key: str) -> bool:
    """Let several writers create one object at the same time; return whether exactly one of them did."""
    racers = [f"{key}-{number}".encode() for number in range(RACERS)]
    return sum(in_parallel(lambda racer: store.create(key, racer), racers)) == 1


def _unsuitable(store: ObjectStore, fault: str) -> UnsuitableStoreError:
    return UnsuitableStoreError(
        f"{store.url} cannot be used: {fault}. Two drivers could then commit the same record, and changes would be "
        "lost or doubled. Use Amazon S3, Google Cloud Storage, Azure Blob Storage, or a server that supports "
        "conditional writes (docs/object-stores.md lists those that were tried)"
    )
