"""How the sink logs in: a file with credentials, another service account, or what the machine runs as."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import impersonated_credentials
from google.oauth2 import service_account

from penstock.errors import UsageError
from penstock.io.bigquery import BigQueryTargetError
from penstock.io.bigquery.clients import classified_errors, rest_client
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.change_streams.credentials import GoogleLogin

WRITER = "writer@p.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("keys") / "key.json"
    facts = {"type": "service_account", "client_email": "me@p.iam.gserviceaccount.com", "project_id": "p"}
    token = {"token_uri": "https://oauth2.googleapis.com/token", "private_key": key.decode()}
    path.write_text(json.dumps(facts | token))
    return path


def target(login: GoogleLogin) -> BigQueryTarget:
    return pickle.loads(pickle.dumps(BigQueryTarget("p", "d", login=login)))


def test_a_key_file_is_used(key_file: Path) -> None:
    found = rest_client(target(GoogleLogin(str(key_file))))._credentials
    assert isinstance(found, service_account.Credentials)
    assert found.service_account_email == "me@p.iam.gserviceaccount.com"


def test_another_service_account_is_impersonated(key_file: Path) -> None:
    found = rest_client(target(GoogleLogin(str(key_file), WRITER)))._credentials
    assert isinstance(found, impersonated_credentials.Credentials)
    assert found.service_account_email == WRITER


def test_without_a_choice_the_client_finds_the_default_credentials() -> None:
    assert GoogleLogin().load() is None


def test_a_missing_file_is_an_error_that_names_the_fix(tmp_path: Path) -> None:
    with (
        pytest.raises(BigQueryTargetError, match="credentials_file=.*missing.json cannot be read"),
        classified_errors("BigQuery dataset p.d"),
    ):
        rest_client(target(GoogleLogin(str(tmp_path / "missing.json"))))


def test_a_file_of_another_kind_is_an_error_without_its_content(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text('{"type": "service_account", "private_key": "secret"}')
    with (
        pytest.raises(BigQueryTargetError, match="neither a key of a service account nor") as failed,
        classified_errors("BigQuery dataset p.d"),
    ):
        rest_client(target(GoogleLogin(str(path))))
    assert "secret" not in str(failed.value)


def test_what_is_no_service_account_is_refused_before_the_start() -> None:
    with pytest.raises(UsageError, match="e-mail address of a service account, got 'writer'"):
        GoogleLogin(impersonate="writer")
