"""Records which checkpoint owns an output, so that a copy of the checkpoint cannot write to it too. No Beam.

    <output>/.penstock-staging/<job>/<sink>.owner/n<record>_<digest>     the mark of the checkpoint that writes

A copy of a checkpoint has the job name of the original, so both stage in the same folder. The clean-up of one would
delete what the other has staged, and the other one would take a missing file for a published one. So a driver leaves a
mark, the number and the digest of its last record, when it takes over and before each clean-up. A mark that is not in
the history of its checkpoint belongs to another checkpoint.
"""

from __future__ import annotations

import re

from penstock.io.staging.errors import OutputTakenError
from penstock.io.staging.names import staging_folder
from penstock.io.staging.store import FileStore
from penstock.publish import CheckpointPosition

_MARK = re.compile(r"n(\d+)_([0-9a-f]+)")
_DIGITS = 24
"""Hexadecimal digits of a record's digest in a mark."""


def claim(store: FileStore, job: str, sink: str, position: CheckpointPosition) -> None:
    """Leave the mark of this checkpoint in an output, and remove the older marks of this checkpoint.

    Two checkpoints that claim at the same moment may both be refused. If both are accepted, the next claim of either
    one ends it.

    Raises:
        OutputTakenError: the output has the mark of another checkpoint.
        OutputError: the store refused.
    """
    folder = f"{staging_folder(job, sink)}.owner"
    own = f"{folder}/{mark_of(position.number, position.digest)}"
    # Every claim looks before it creates. If two look at the same moment, the next claim of each finds the other mark.
    found = store.names_in(folder)
    for name in found:
        if name != own and not is_own(name, position):
            raise OutputTakenError(
                f"another checkpoint of job {job} writes to {store.output}, probably a copy of this one: its mark is "
                f"{name}. Only the checkpoint that wrote last may continue. To write with this one all the same, for "
                "example after the other one was deleted, compare the output with the source, delete the mark, and "
                "start again; or give the copy another output"
            )
    # The new mark comes first: if the driver dies between the two calls, the output still has a mark.
    # Each clean-up claims again, so the mark of this position may be there already.
    if own not in found:
        store.create(own, [b""])
    store.delete(name for name in found if name != own)
    store.sync([own])


def mark_of(number: int, digest: str) -> str:
    """Return the name of the mark of a record."""
    return f"n{number:012d}_{digest[:_DIGITS]}"


def is_own(name: str, position: CheckpointPosition) -> bool:
    """Return whether a mark is of the history of a checkpoint. Pure.

    While a driver runs, only the mark that it left last is. When it starts, a mark of a later record shows that this
    checkpoint is an older copy, and a record with another digest that it is another one. A record that was deleted
    since then cannot be compared: a sink that was left out of the pipeline for some time has such an old mark.
    """
    found = _MARK.fullmatch(name.rpartition("/")[2])
    if found is None:
        return True  # not a mark
    number, digest = int(found[1]), found[2]
    if position.claimed is not None:
        return (number, digest) == (position.claimed[0], position.claimed[1][:_DIGITS])
    if number > position.number:
        return False
    # None: the record was deleted, so the mark cannot be compared and is accepted.
    known = position.digest_of(number)
    return known is None or known.startswith(digest)
