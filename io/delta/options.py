"""The options of the Delta sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from penstock.errors import UsageError
from penstock.io.columnar.options import TableSinkOptions
from penstock.options import Accepts, options

DELTA_CANNOT_MOVE = (
    "A Delta table needs column mapping for that, and delta-rs refuses to write tables with column mapping. Iceberg "
    "can."
)
"""Why the sink renames and drops no columns; read in delta-rs 1.6."""


@options
class DeltaSinkOptions(TableSinkOptions):
    """The options of `WriteToDelta`."""

    uri: Annotated[str | os.PathLike[str], Accepts(example="/data/lake/{table}")] = field(kw_only=False)
    """Table to write: a local folder or the URL of an object store. ``{table}``, ``{schema}`` and ``{database}`` are
    the names of the source; without them all events must be of one table."""
    storage_options: Annotated[
        Mapping[str, str] | None, Accepts(example="AWS_ENDPOINT_URL=https://minio.example.com")
    ] = None
    """Options of delta-rs for the object store. Credentials are better in the environment."""
    deletion_vectors: bool = False
    """Whether tables get the property ``delta.enableDeletionVectors``, unless they have it already. Then an epoch in
    the modes current and history costs what it changes, and not what the table has. Programs that read such a table
    must know deletion vectors: ``to_pandas`` and ``to_pyarrow_table`` of delta-rs do not."""

    def check_vectors(self) -> None:
        """Raise UsageError if the mode has no deletion vectors."""
        if self.deletion_vectors and self.mode == "log":
            raise UsageError(
                "deletion_vectors is for the modes current and history: a log replaces no rows. Leave it out, or set "
                "another mode"
            )
