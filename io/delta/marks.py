"""Where a Delta table has the time until which it is complete: metadata and a transaction of a commit. Pure."""

from __future__ import annotations

import msgspec

from penstock.io.staging.complete_marks import Mark

USER_METADATA = "userMetadata"


def complete_entry(writer: str) -> str:
    """Return the application transaction of a table whose version is the time of the mark of a writer, in µs."""
    return f"{writer}/complete"


def user_metadata(mark: Mark) -> dict[str, str]:
    """Return a mark as metadata of a commit."""
    # The key whose text Spark shows as a column of DESCRIBE HISTORY.
    return {USER_METADATA: msgspec.structs.replace(mark, record=0).encoded.decode()}
