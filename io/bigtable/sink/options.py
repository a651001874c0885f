"""The options of the Bigtable sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Annotated

from penstock.io.staging.options import SendOptions
from penstock.options import Accepts, options


@options
class BigtableSinkOptions(SendOptions):
    """The options of `WriteToBigtable`."""

    project: Annotated[str, Accepts(example="my-project")]
    """Google Cloud project of the target."""
    instance: Annotated[str, Accepts(example="copy")]
    """Bigtable instance of the target."""
    table: Annotated[str, Accepts(example="users")]
    """Target table. It exists already."""
    app_profile: str = "default"
    """App profile with single-cluster routing that allows transactional writes."""
    version_family: str = "penstock"
    """Column family of versions."""
    mark_complete: bool = False
    """Whether rows of the table say until which commit time it is complete."""
    emulator_host: str | None = None
    """``host:port`` of an emulator. Default: BIGTABLE_EMULATOR_HOST, if it is set."""
