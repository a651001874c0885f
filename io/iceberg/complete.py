"""`complete_until` of an Iceberg table: the marks in its properties."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from penstock.extras import extra_packages
from penstock.io.staging.complete_marks import complete_times, decode_mark


def complete_until(
    table: str, *, catalog: str = "default", catalog_properties: Mapping[str, str] | None = None
) -> dict[str, datetime]:
    """Return by job until when it has completed an Iceberg table; empty without a mark.

    The table has every change of the job with a commit time below (not at) the time, except dead letters. Read the time
    first, and then the table.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is no table.
    """
    with extra_packages("iceberg"):
        from pyiceberg.catalog import load_catalog
    from penstock.io.iceberg.rewind import COMPLETE

    properties = load_catalog(catalog, **(catalog_properties or {})).load_table(table).properties
    # Of one sink the highest number first.
    names = sorted((name for name in properties if name.startswith(COMPLETE)), reverse=True)
    return complete_times(decode_mark(properties[name]) for name in names)
