"""The configuration of the Spanner sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass

TRANSACTION_TAG = "penstock-replica"
"""The tag of the sink's transactions. A reader of the target's change stream leaves them out by it."""


@dataclass(frozen=True, slots=True)
class SpannerTarget:
    """See `WriteToSpanner`, whose arguments these are."""

    project: str
    instance: str
    database: str
    transaction_tag: str = TRANSACTION_TAG
    tombstone_days: int = 7
    emulator_host: str | None = None

    @property
    def name(self) -> str:
        """``Spanner database projects/p/instances/i/databases/d``."""
        return f"Spanner database projects/{self.project}/instances/{self.instance}/databases/{self.database}"
