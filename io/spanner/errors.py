"""The reaction of the reader, or the error, that each status of the service means. Pure."""

from __future__ import annotations

from enum import Enum, auto

from penstock.errors import ChangeStreamError, PositionLostError, SetupError
from penstock.io.change_streams.status import RETRYABLE, first_line, status_of


class Reaction(Enum):
    """The reader's reaction to a status that the user need not see."""

    RETRY = auto()
    NEW_SESSION = auto()


def classify_status(code: str, details: str, stream: str, position: str) -> Reaction | ChangeStreamError:
    """Return how to handle a gRPC status: retry, with or without a new session, or raise the returned error.

    `code` is the status code's name; `stream` and `position` are the reader's own, for the message. How long to retry
    is not decided here.

    Source: Cloud Spanner documentation; the texts are the service's, as the emulator repeats them.
    """
    code = status_of(code, details)
    if code in RETRYABLE:
        return Reaction.RETRY
    # Spanner answers NOT_FOUND for a session and for a database; only the text tells them apart.
    if code == "NOT_FOUND" and "session not found" in details.lower():
        return Reaction.NEW_SESSION
    where = f"{stream}, read at {position}"
    kind, advice = _advice(code, details)
    return kind(f"{where}: {advice} (Spanner said {code}: {first_line(details)})")


def _advice(code: str, details: str) -> tuple[type[ChangeStreamError], str]:
    # In the order of the table: the special texts of a code come before its empty one.
    for (expected_code, text), answer in _KNOWN.items():
        if code == expected_code and text in details:
            return answer
    return ChangeStreamError, "the query was refused"


_NO_STREAM = (
    SetupError,
    "the change stream does not exist (any more). Check its name with SELECT change_stream_name FROM "
    "information_schema.change_streams; if it was dropped, its unread changes are gone with it",
)
_KNOWN: dict[tuple[str, str], tuple[type[ChangeStreamError], str]] = {
    ("OUT_OF_RANGE", "too far in the past"): (
        PositionLostError,
        "this time lies before the change stream's creation or past its retention period, so changes after "
        "it cannot be read any more. A new pipeline must pass a later start. One that fell behind has lost "
        "changes: take a new snapshot of the tables, start from then with a new checkpoint folder, and raise "
        "the stream's retention_period (ALTER CHANGE STREAM … SET OPTIONS, at most 7 days)",
    ),
    ("OUT_OF_RANGE", "too far in the future"): (
        SetupError,
        "this time lies more than ten minutes in the future. Pass an earlier start, or none for now; if you "
        "did, check the clock of the machine that built the pipeline",
    ),
    ("OUT_OF_RANGE", ""): (
        PositionLostError,
        "the partition does not reach to this time and said nothing about its children. That is not taken "
        "for its end. Start again from the pipeline's last watermark with a new checkpoint folder, and "
        "report it, please",
    ),
    ("INVALID_ARGUMENT", "Table-valued function not found"): _NO_STREAM,
    ("NOT_FOUND", "Change Stream not found"): _NO_STREAM,  # dropped while the query ran
    ("INVALID_ARGUMENT", "does not belong to the Change Stream"): (
        PositionLostError,
        "the service does not know the partition token that the checkpoint holds: the change stream or the "
        "database was dropped and created again. Start with a new checkpoint folder",
    ),
    ("NOT_FOUND", "function spanner.read_"): _NO_STREAM,  # the PostgreSQL dialect, after it was dropped
    ("NOT_FOUND", ""): (
        SetupError,
        "the project, instance or database does not exist. Check the three names; an emulator forgets "
        "everything when it ends",
    ),
    ("PERMISSION_DENIED", ""): (
        SetupError,
        "the credentials may not read it. Grant roles/spanner.databaseReader on the database, or, with "
        "fine-grained access control, SELECT on the change stream and EXECUTE on its read function to the "
        "database_role that you pass",
    ),
    ("UNAUTHENTICATED", ""): (
        SetupError,
        "no valid credentials. Run `gcloud auth application-default login`, set "
        "GOOGLE_APPLICATION_CREDENTIALS, or pass credentials",
    ),
}
