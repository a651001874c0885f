"""Each status of Spanner is retried or becomes an error that names the fix."""

from __future__ import annotations

import pytest

from penstock.errors import ChangeStreamError, PositionLostError, SetupError
from penstock.io.spanner.errors import Reaction, classify_status

STREAM = "change stream S of projects/p/instances/i/databases/d"


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED"]
)
def test_transient_statuses_are_retried(code: str) -> None:
    assert classify_status(code, "whatever", STREAM, "now") is Reaction.RETRY


REFUSED = (
    "Getting metadata from plugin failed with error: Reauthentication is needed. Please run `gcloud auth …"
)
OUT_OF_REACH = (
    "Getting metadata from plugin failed with error: HTTPConnectionPool(host='oauth2.googleapis.com', …"
)


def test_refused_credentials_fail_at_once_and_an_unreachable_token_endpoint_is_retried() -> None:
    error = classify_status("UNAVAILABLE", REFUSED, STREAM, "now")
    assert isinstance(error, SetupError)
    assert "application-default login" in str(error)
    assert classify_status("UNAVAILABLE", OUT_OF_REACH, STREAM, "now") is Reaction.RETRY


def test_a_forgotten_session_is_replaced() -> None:
    details = "Session not found: projects/p/instances/i/databases/d/sessions/0"
    assert classify_status("NOT_FOUND", details, STREAM, "now") is Reaction.NEW_SESSION


@pytest.mark.parametrize(
    ("code", "details", "kind", "advice"),
    [
        (
            "OUT_OF_RANGE",
            "Specified start_timestamp is too far in the past. Please …",
            PositionLostError,
            "take a new snapshot of the tables, start from then",
        ),
        ("OUT_OF_RANGE", "Specified start_timestamp is too far in the future.", SetupError, "ten minutes"),
        (
            "OUT_OF_RANGE",
            "Specified start_timestamp is invalid for the partition.",
            PositionLostError,
            "not taken for its end",
        ),
        (
            "INVALID_ARGUMENT",
            "Table-valued function not found: READ_S [at 1:26]\nSELECT …",
            SetupError,
            "the change stream does not exist",
        ),
        (
            "INVALID_ARGUMENT",
            "Specified partition_token is invalid, as it does not belong to the Change Stream associated …",
            PositionLostError,
            "dropped and created again",
        ),
        ("NOT_FOUND", "Change Stream not found: S", SetupError, "the change stream does not exist"),
        (
            "NOT_FOUND",
            "[ERROR] function spanner.read_json_S(text) does not exist",
            SetupError,
            "the change stream does not exist",
        ),
        ("NOT_FOUND", "Instance not found: projects/p/instances/i", SetupError, "an emulator forgets"),
        ("PERMISSION_DENIED", "Caller is missing IAM permission", SetupError, "roles/spanner.databaseReader"),
        ("UNAUTHENTICATED", "Request had invalid authentication", SetupError, "application-default login"),
        ("FAILED_PRECONDITION", "something else", ChangeStreamError, "the query was refused"),
    ],
)
def test_errors_name_the_stream_the_position_and_the_fix(
    code: str, details: str, kind: type[Exception], advice: str
) -> None:
    error = classify_status(code, details, STREAM, "2026-01-01T00:00:00.000000000Z in the root partition")
    assert type(error) is kind
    message = str(error)
    assert message.startswith(f"{STREAM}, read at 2026-01-01T00:00:00.000000000Z in the root partition: ")
    assert advice in message
    assert f"Spanner said {code}: {details.splitlines()[0]}" in message
    assert "\n" not in message
