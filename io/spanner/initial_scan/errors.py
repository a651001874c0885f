"""The meaning of a status that only a read at an exact timestamp ends with; `io.spanner.errors` has the others."""

from __future__ import annotations

from penstock.errors import ChangeStreamError, PositionLostError, SetupError
from penstock.io.change_streams.status import UnreachableError, first_line
from penstock.io.spanner.errors import Reaction, classify_status
from penstock.io.spanner.initial_scan.plan import RAISE_VERSION_RETENTION


class ExpiredError(UnreachableError):
    """The service has forgotten the session, the transaction or the partition token: make another one."""


def classify_read(code: str, details: str, where: str) -> Reaction | ChangeStreamError | ExpiredError:
    """Return how to handle the gRPC status of a read: retry, plan again, or raise the returned error.

    `where` says for the message what was read and when.

    Source: Cloud Spanner documentation, "Point-in-time recovery", "Data Boost" and
    google/spanner/v1/spanner.proto, PartitionRead ("It is possible for a partition token to become invalid when …").
    """
    text = details.lower()
    if code in ("FAILED_PRECONDITION", "OUT_OF_RANGE") and ("staleness" in text or "timestamp" in text):
        return PositionLostError(
            f"{where}: the database no longer has the rows of this time (version_retention_period). A new snapshot "
            "needs a later time and a new checkpoint folder. If reading takes longer than the database keeps old "
            f"versions, raise the period before: {RAISE_VERSION_RETENTION} (Spanner said {code}: {first_line(details)})"
        )
    if code == "PERMISSION_DENIED" and "databoost" in text.replace(" ", ""):
        return SetupError(
            f"{where}: the credentials may not use Data Boost. Grant the permission spanner.databases.useDataBoost "
            "(role roles/spanner.databaseReaderWithDataBoost) on the database, or leave data_boost out (Spanner said "
            f"{code}: {first_line(details)})"
        )
    if code == "NOT_FOUND" and ("table not found" in text or "column not found" in text):
        return SetupError(
            f"{where}: the table or a column of it does not exist at this time. Check the names; a table that was "
            f"created later than the time of the snapshot has no rows at it (Spanner said {code}: "
            f"{first_line(details)})"
        )
    if code == "PERMISSION_DENIED":
        return SetupError(
            f"{where}: the credentials may not read it. Grant roles/spanner.databaseReader on the database, or, with "
            "fine-grained access control, SELECT on the tables to the database_role that you pass (Spanner said "
            f"{code}: {first_line(details)})"
        )
    if (code == "NOT_FOUND" and "transaction not found" in text) or (
        code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
        and ("partition token" in text or "transaction" in text)
    ):
        return ExpiredError(f"{code}: {first_line(details)}")
    return classify_status(code, details, where, "the snapshot")
