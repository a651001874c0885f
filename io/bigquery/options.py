"""The options of the BigQuery sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock.event.schema_policies import Abilities
from penstock.io.staging.options import SendOptions, TargetTableOptions
from penstock.options import Accepts, options

Mode = Literal["log", "current"]

ABILITIES: Abilities = {
    "add": ("evolve", "try_evolve", "lenient", "ignore", "stop"),
    "widen": ("evolve", "try_evolve", "lenient", "ignore", "stop"),
    "type": ("try_evolve", "ignore", "stop"),
    "narrow": ("lenient", "ignore", "stop"),
    "drop": ("lenient", "ignore"),
    "rename": ("lenient",),
    "nullability": ("lenient", "ignore"),
    "key": ("stop",),
}
"""The policies for changes of columns that the mode *current* keeps; see `penstock.event.schema_policies`."""

CANNOT_MOVE = (
    "BigQuery renames and drops columns in no transaction with a note of their numbers, and the Storage Write API "
    "knows a new name only minutes later: alter the table by hand while the pipeline is stopped."
)
"""Why the sink renames and drops no columns."""

Nanoseconds = Literal["refuse", "truncate"]
"""What happens to a value with nanoseconds outside of the key."""


@options
class BigQuerySinkOptions(TargetTableOptions, SendOptions):
    """The options of `WriteToBigQuery`."""

    project: Annotated[str, Accepts(example="my-project")]
    """Google Cloud project of the dataset."""
    dataset: Annotated[str, Accepts(example="shop")]
    """Dataset of the target tables. It must exist."""
    mode: Mode = "log"
    """Whether the sink appends every event (log) or maintains one row for each primary key (current). Only current
    follows schema_changes."""
    max_staleness_seconds: int = 900
    """Age, in seconds, that the answer of a query may have, for tables that the mode current creates. With 0 BigQuery
    applies all changes before each query, which costs time and money. At most 86,400."""
    nanoseconds: Nanoseconds = "refuse"
    """What happens in the mode current to times with nanoseconds, which BigQuery does not have: they are refused, or
    truncated to microseconds. In keys they are always refused."""
    mark_complete: bool = False
    """Whether a table says until which commit time the target is complete: ``penstock_complete`` in the mode log,
    ``penstock_complete_current`` in the mode current, where a time counts max_staleness_seconds later."""
    credentials_file: Annotated[str | None, Accepts(example="/run/secrets/bigquery.json")] = None
    """JSON file with Google credentials, on the driver and on each worker. Default: the application default
    credentials."""
    impersonate: Annotated[str | None, Accepts(example="writer@my-project.iam.gserviceaccount.com")] = None
    """E-mail address of a service account that the credentials impersonate."""
    endpoint: Annotated[str | None, Accepts(example="http://localhost:9050")] = None
    """URL of the REST API of an emulator, such as ``http://localhost:9050``."""
    write_endpoint: Annotated[str | None, Accepts(example="localhost:9060")] = None
    """``host:port`` of the Storage Write API of an emulator."""
