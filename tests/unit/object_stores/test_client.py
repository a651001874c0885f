"""Endpoints and credentials are found as each cloud's own tools find them."""

from __future__ import annotations

import json
import os
import sys

import pytest

from penstock.errors import UsageError
from penstock.object_stores import client
from penstock.object_stores.location import Location, locate


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def place(url: str) -> Location:
    location = locate(url)
    assert isinstance(location, Location)
    return location


def test_the_endpoint_of_the_url_wins_over_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general:1")
    assert client._s3(place("s3://b"))[0] == "http://general:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://of-s3:1")
    assert client._s3(place("s3://b"))[0] == "http://of-s3:1"
    endpoint, arguments = client._s3(place("s3://b?endpoint=http://of-url:1&region=r"))
    assert endpoint == "http://of-url:1"
    assert arguments["config"] == {"aws_endpoint_url_s3": "http://of-url:1", "region": "r"}


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_credentials_in_the_environment_need_no_library_of_amazon(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, "x")
    assert "credential_provider" not in client._s3(place("s3://b"))[1]


def test_a_profile_is_read_by_the_library_of_amazon(monkeypatch, tmp_path):
    profile = "[mine]\naws_access_key_id = from-profile\naws_secret_access_key = tiger\n"
    (tmp_path / "credentials").write_text(profile)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    provider = client._s3(place("s3://b"))[1]["credential_provider"]
    assert provider()["access_key_id"] == "from-profile"


def test_an_emulator_of_google_storage_needs_no_credentials(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:4443")
    endpoint, arguments = client._gcs(place("gs://b"))
    assert endpoint == "http://localhost:4443"
    assert json.loads(arguments["config"]["service_account_key"])["disable_oauth"] is True


def test_the_variables_of_azures_command_line_are_understood(monkeypatch):
    with pytest.raises(UsageError, match=r"needs the name of a storage account: add \?account=NAME"):
        client._azure(place("az://c"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "key")
    assert client._azure(place("az://c"))[1]["config"] == {"account_name": "mine", "account_key": "key"}
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sas")
    assert client._azure(place("az://c?account=other"))[1]["config"] == {
        "account_name": "other",
        "sas_key": "sas",
    }


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        UsageError, match=r"obstore is missing: pip install '\.\[gcs\]' in a clone of Penstock, on the driver"
    ):
        client.store_at(place("gs://b/x")).read("key")


def test_large_uploads_get_more_time(monkeypatch):
    requests = client.ObstoreRequests(place("s3://b?region=r"))
    seconds: list[int] = []
    monkeypatch.setattr(client, "_client_of", lambda location, timeout, _: seconds.append(timeout))
    for size in (0, 1 << 20, 11 << 20, 100 << 20):
        requests._client(size)
    assert seconds == [10, 10, 20, 160]


def test_options_of_delta_rs_are_for_the_store_and_not_for_its_commits():
    arguments: dict = {"config": {"aws_endpoint_url_s3": "http://other"}, "credential_provider": "profile"}
    options = {
        "aws_endpoint_url": "http://host",
        "aws_access_key_id": "key",
        "aws_allow_http": "true",
        "aws_s3_allow_unsafe_rename": "true",
        "timeout": "5s",
    }
    assert client._add_options(arguments, options) == "http://host"
    assert arguments == {"config": {"aws_endpoint_url_s3": "http://host", "aws_access_key_id": "key"}}
