"""Each status of Bigtable is retried or becomes an error that names the fix."""

from __future__ import annotations

import pytest

from penstock.errors import ChangeStreamError, PositionLostError, SetupError, UnavailableError
from penstock.io.bigtable.errors import classify_close, classify_status
from penstock.io.bigtable.preflight import check_retention, check_source
from penstock.io.bigtable.source import ChangeStream
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError

STREAM = ChangeStream("p", "i", "t", 100 * 3_600_000_000_000, None)


REFUSED = (
    "Getting metadata from plugin failed with error: ('invalid_grant: Invalid JWT Signature.', "
    "{'error': 'invalid_grant', 'error_description': 'Invalid JWT Signature.'})"
)
OUT_OF_REACH = (
    "Getting metadata from plugin failed with error: HTTPConnectionPool(host='oauth2.googleapis.com', …"
)


def test_refused_credentials_fail_at_once_and_an_unreachable_token_endpoint_is_retried() -> None:
    error = classify_status("UNAVAILABLE", REFUSED, "t", "here")
    assert isinstance(error, SetupError)
    assert "application-default login" in str(error)
    assert isinstance(classify_status("UNAVAILABLE", OUT_OF_REACH, "t", "here"), UnreachableError)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED"])
def test_transient_statuses_are_retried(code: str) -> None:
    assert isinstance(classify_status(code, "Received RST_STREAM", "t", "here"), UnreachableError)


@pytest.mark.parametrize(
    ("code", "details", "by_token", "kind", "advice"),
    [
        ("OUT_OF_RANGE", "older than retention", True, PositionLostError, "take a new snapshot"),
        ("OUT_OF_RANGE", "older than retention", False, PositionLostError, "must pass a later start"),
        ("INVALID_ARGUMENT", "start_time lies in the future", False, SetupError, "Pass an earlier start"),
        ("INVALID_ARGUMENT", "token of another table", True, PositionLostError, "dropped and created again"),
        ("INVALID_ARGUMENT", "what?", False, SetupError, "within the retention period"),
        ("FAILED_PRECONDITION", "the table has no change stream", True, SetupError, "Enable it with"),
        (
            "FAILED_PRECONDITION",
            "app profile must be single-cluster",
            True,
            SetupError,
            "app-profiles create",
        ),
        ("NOT_FOUND", "no app profile 'x'", False, SetupError, "Check app_profile"),
        ("NOT_FOUND", "no table", False, SetupError, "Check the three names"),
        ("PERMISSION_DENIED", "no", False, SetupError, "roles/bigtable.user"),
        ("UNAUTHENTICATED", "no", False, SetupError, "gcloud auth"),
        ("UNIMPLEMENTED", "no", False, SetupError, "penstock emulator bigtable"),
        ("DATA_LOSS", "no", False, ChangeStreamError, "refused"),
    ],
)
def test_the_error_of_each_refusal_names_the_fix(
    code: str, details: str, by_token: bool, kind: type[Exception], advice: str
) -> None:
    error = classify_status(code, details, "change stream of t", "the start", by_token=by_token)
    assert type(error) is kind
    assert advice in str(error)
    assert "change stream of t, read at the start" in str(error)
    assert f"Bigtable said {code}: {details}" in str(error)


@pytest.mark.parametrize("code", [0, 11, 14, 13])
def test_a_close_without_tokens_is_retried(code: int) -> None:
    assert isinstance(classify_close(code, "closed", "t", "here"), UnreachableError)


@pytest.mark.parametrize(("code", "kind"), [(9, SetupError), (7, SetupError), (99, ChangeStreamError)])
def test_a_close_with_a_permanent_status_is_an_error(code: int, kind: type[Exception]) -> None:
    assert isinstance(classify_close(code, "closed", "t", "here"), kind)


def test_a_profile_over_several_clusters_is_refused_by_name() -> None:
    with pytest.raises(SetupError, match="'many' of projects/p/instances/i .* --route-to=CLUSTER"):
        check_source(STREAM, "many", lambda: "multi_cluster_routing_use_any")


def test_a_start_past_the_retention_is_refused_with_the_earliest_time() -> None:
    now = STREAM.start + 25 * 3_600_000_000_000
    with pytest.raises(PositionLostError, match="24 hours; the earliest readable time is 1970-01-05T05"):
        check_retention(STREAM, lambda: 24 * 3_600_000_000_000, now)


def test_facts_that_the_admin_api_does_not_tell_are_checked_by_the_first_request() -> None:
    check_source(STREAM, "default", lambda: "")
    check_retention(STREAM, lambda: 0, 1 << 62)


def test_simultaneous_failures_lengthen_the_pause_once_and_a_long_outage_raises() -> None:
    now = [0.0]
    backoff = Backoff("Bigtable", UnavailableError, clock=lambda: now[0], draw=lambda low, high: high)
    for _ in range(10):
        backoff.failed("down", 60)
    assert backoff.remaining_pause() == pytest.approx(0.05)
    now[0] = 61
    with pytest.raises(UnavailableError, match="has not answered for 61 s .*down"):
        backoff.failed("down", 60)
    backoff.answered()
    assert backoff.remaining_pause() == 0
