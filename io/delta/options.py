"""The options of the Delta sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from penstock.io.columnar.options import TableSinkOptions
from penstock.options import Accepts, options


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
