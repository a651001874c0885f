"""The options of the Spanner sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Annotated

from penstock.io.staging.options import SendOptions
from penstock.options import Accepts, options

TRANSACTION_TAG = "penstock-replica"
"""The tag of the sink's transactions. A reader of the target's change stream leaves them out by it."""


@options
class SpannerSinkOptions(SendOptions):
    """The options of `WriteToSpanner`."""

    project: Annotated[str, Accepts(example="my-project")]
    """Google Cloud project of the target."""
    instance: Annotated[str, Accepts(example="main")]
    """Spanner instance of the target."""
    database: Annotated[str, Accepts(example="copy")]
    """Target database, of the dialect GoogleSQL. It has the tables already."""
    transaction_tag: str = TRANSACTION_TAG
    """Tag of the transactions of the sink."""
    tombstone_days: int = 7
    """Number of days for which the versions of deleted rows stay. At least the retention of the change stream and the
    age at which dead letters are replayed."""
    mark_complete: bool = False
    """Whether the table ``PenstockComplete`` says until which commit time the target is complete."""
    emulator_host: str | None = None
    """``host:port`` of an emulator."""
