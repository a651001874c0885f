"""The configuration of the Spanner sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.io.spanner.sink.options import TRANSACTION_TAG


@dataclass(frozen=True, slots=True)
class SpannerTarget:
    """See `SpannerSinkOptions`."""

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
