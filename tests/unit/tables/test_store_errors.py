"""Which errors of a store or a catalogue are asked again, and which name what to correct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SeveralProblemsError
from penstock.io.columnar.store_errors import advice_for, one_line
from penstock.io.delta.errors import DeltaTargetError
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.errors import IcebergTargetError, classify_error
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import TargetUnavailableError
from tests.unit.tables.histories import Writer
from tests.unit.tables.test_delta import publish

# Texts of delta-rs 1.6.6 and pyarrow 25 with moto 5.2.5, shortened.
NO_BUCKET = (
    "Kernel error -> Generic S3 error \n \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:1/b?list-type=2 - "
    "Server returned non-2xx status code \n \x1b[31m↳\x1b[0m 404 Not Found \n <Code>NoSuchBucket</Code>"
)
NOT_THERE = (
    "Generic S3 error: Error performing GET http://127.0.0.1:1/no-such-bucket/_delta_log in 103ms - HTTP error: error "
    "sending request: tcp connect error: Connection refused (os error 111)"
)
NO_LOGIN = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token: 403 Forbidden"
ARROW = "When getting information for key 'w/t' in bucket 'no-such-bucket': AWS Error {} during HeadObject operation"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (NO_BUCKET, "bucket does not exist"),
        (ARROW.format("NO_SUCH_BUCKET"), "bucket does not exist"),
        (ARROW.format("ACCESS_DENIED"), "access is denied"),
        (
            "Generic S3 error: Client error with status 403 Forbidden: <Code>AccessDenied</Code>",
            "access is denied",
        ),
        ("The operation lacked valid authentication credentials for path _delta_log", "not accepted"),
        (ARROW.format("INVALID_ACCESS_KEY_ID"), "not accepted"),
        ("Could not create local directory: /x Error: Os { code: 20 }", "cannot be created"),
    ],
)
def test_an_error_that_a_person_must_correct_has_its_fix(text: str, advice: str):
    assert advice in (advice_for(text) or "")


@pytest.mark.parametrize("text", [NOT_THERE, ARROW.format("NETWORK_CONNECTION"), "503 Slow Down", NO_LOGIN])
def test_a_store_that_may_answer_later_is_asked_again_whatever_its_bucket_is_called(text: str):
    assert advice_for(text) is None


def test_a_message_has_one_line_without_colours():
    assert one_line(NO_BUCKET).startswith("Kernel error -> Generic S3 error: Error performing GET")
    assert one_line(NO_LOGIN).startswith("no credentials were found: set them")
    assert len(one_line("x" * 5000)) < 500


def test_delta_refuses_a_folder_that_cannot_be_made_before_anything_is_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DeltaTargetError, match="cannot be created or written"):
        publish(DeltaTarget(str(tmp_path / "file" / "t"), "current", "evolve"), Writer(1).changes(1), 2)


@pytest.mark.parametrize("uri", ["{folder}/t", "{folder}/{{table}}", "file://{folder}/a_{{table}}/t"])
def test_delta_tells_a_folder_that_cannot_be_made_before_the_start_and_makes_none(tmp_path: Path, uri: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DeltaTargetError, match="cannot be created: nothing can be created in .*file: Not a dir"
    ):
        DeltaTarget(uri.format(folder=tmp_path / "file"), "current", "evolve").check()
    DeltaTarget(uri.format(folder=tmp_path / "new"), "current", "evolve").check()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_iceberg_tells_its_warehouse_and_its_catalogue_at_once(tmp_path: Path):
    (tmp_path / "file").write_text("")
    properties = {"type": "stone tablets", "warehouse": f"file://{tmp_path}/file/w"}
    with pytest.raises(SeveralProblemsError, match="(?s)nothing can be created in .*is not configured"):
        IcebergTarget("shop.t", "prod", "log", "evolve", properties).check()


@pytest.mark.parametrize("properties", [{}, {"type": "stone tablets"}])
def test_a_catalogue_that_is_not_configured_is_named_with_the_places_of_its_properties(properties: Any):
    with pytest.raises(
        IcebergTargetError, match="catalogue prod is not configured.*PYICEBERG_CATALOG__PROD__URI"
    ):
        IcebergTarget("shop.t", "prod", "log", "evolve", properties).check()


@pytest.mark.parametrize(
    ("kind", "text", "found", "advice"),
    [
        (
            "UnauthorizedError",
            "NotAuthorized: no token",
            IcebergTargetError,
            "does not accept the credentials",
        ),
        ("ForbiddenError", "Forbidden: no", IcebergTargetError, "may not do this"),
        ("OSError", ARROW.format("ACCESS_DENIED"), IcebergTargetError, "access is denied"),
        (
            "OperationalError",
            'FATAL: password authentication failed for user "u"\n[SQL: select 1]',
            IcebergTargetError,
            "does not accept the login",
        ),
        ("ServiceUnavailableError", "later", TargetUnavailableError, "later"),
    ],
)
def test_an_error_of_a_catalogue_is_named_without_statements(kind: str, text: str, found: Any, advice: str):
    later = kind in ("OSError", "OperationalError", "ServiceUnavailableError")
    error = classify_error(kind, text, "the Iceberg table a.b", may_answer_later=later)
    assert type(error) is found
    assert advice in str(error)
    assert "[SQL" not in str(error)
