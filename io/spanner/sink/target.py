"""The configuration of the Spanner sink, as a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.io.spanner.sink.options import SpannerSinkOptions


@dataclass(frozen=True, slots=True)
class SpannerTarget:
    """See `SpannerSinkOptions`."""

    project: str
    instance: str
    database: str
    transaction_tag: str = SpannerSinkOptions.transaction_tag
    tombstone_days: int = SpannerSinkOptions.tombstone_days
    emulator_host: str | None = SpannerSinkOptions.emulator_host

    @property
    def name(self) -> str:
        """``Spanner database projects/p/instances/i/databases/d``."""
        return f"Spanner database projects/{self.project}/instances/{self.instance}/databases/{self.database}"
