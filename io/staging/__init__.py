"""Staged sinks for any file format and any store: collect, roll, stage, commit, publish.

    element -> CollectRecordsFn -> (bucket, block) -> RollFilesFn -> Publication
                                                                 = commit => PublishFilesFn -> PublishedFile

`WriteStagedFiles` is these steps as one transform. Sinks that users see, such as `penstock.io.files.WriteToJsonLines`,
are built on it. docs/files.md lists the effects of a crash at each point.

Names are loaded when they are first used, because most modules here need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.staging.collect import CollectRecordsFn
    from penstock.io.staging.errors import OutputError
    from penstock.io.staging.format import FileFormat
    from penstock.io.staging.publication import Publication, PublishedFile
    from penstock.io.staging.publish import PublishFilesFn
    from penstock.io.staging.roll import RollFilesFn
    from penstock.io.staging.rolling import RollingPolicy
    from penstock.io.staging.store import FileStore, store_of
    from penstock.io.staging.transform import WriteStagedFiles

__all__ = [
    "CollectRecordsFn",
    "FileFormat",
    "FileStore",
    "OutputError",
    "Publication",
    "PublishFilesFn",
    "PublishedFile",
    "RollFilesFn",
    "RollingPolicy",
    "WriteStagedFiles",
    "store_of",
]

# `coders` also registers the coders of the two values.
_HOMES = {
    "CollectRecordsFn": "collect",
    "FileFormat": "format",
    "FileStore": "store",
    "OutputError": "errors",
    "Publication": "coders",
    "PublishFilesFn": "publish",
    "PublishedFile": "coders",
    "RollFilesFn": "roll",
    "RollingPolicy": "rolling",
    "WriteStagedFiles": "transform",
    "store_of": "store",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
