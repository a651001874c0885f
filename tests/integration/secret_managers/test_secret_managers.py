"""Secrets of the four secret managers through the vendors' clients: read once, in no log, refused with the fix."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.secretmanager import SecretManagerServiceClient
from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
    SecretManagerServiceGrpcTransport,
)

import penstock.secret_managers as managers
from penstock.errors import ServiceError, UsageError
from penstock.extras import MissingExtraError
from penstock.secret_managers import aws, azure, gcp, vault
from penstock.secrets import read_secret
from penstock_emulators.server_process import free_port
from tests.support import secret_managers as servers

pytestmark = pytest.mark.slow(seconds=15)

SECRET = "hunter2 of the tests"
FIELDS = json.dumps({"user": "ada", "password": SECRET, "port": 5432, "inner": {}})
KINDS = sorted(managers.MANAGERS)
MODULES = {"aws-secret": aws, "gcp-secret": gcp, "azure-secret": azure, "vault": vault}
LIBRARIES = {
    "aws-secret": "boto3",
    "gcp-secret": "google.cloud.secretmanager",
    "azure-secret": "azure.keyvault.secrets",
    "vault": "hvac",
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The managers by kind, each with the secret `shop`."""
    folder = tmp_path_factory.mktemp("managers")
    with ExitStack() as stack:
        all_ = (servers.aws(folder), servers.google(), servers.azure(folder), servers.vault(folder))
        found = [stack.enter_context(each) for each in all_]
        for each in found:
            each.shop = each.put("shop", FIELDS)
        yield {each.kind: each for each in found}


@pytest.fixture
def manager(request: pytest.FixtureRequest, started: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One manager, to which its vendor's client is led; nothing is kept from another test."""
    found = started[request.param]
    _lead(found, monkeypatch)
    return found


def _lead(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "_kept", {})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    if found.kind == "gcp-secret":
        monkeypatch.setattr(gcp, "_client", lambda location: _google_client(found.host))


def _google_client(host: str) -> Any:
    channel = grpc.insecure_channel(host)
    return SecretManagerServiceClient(transport=SecretManagerServiceGrpcTransport(channel=channel))


each_manager = pytest.mark.parametrize("manager", KINDS, indirect=True)


def reference(manager: Any, name: str, field: str = "password") -> str:
    return f"${{{manager.kind}:{name}#{field}}}"


@each_manager
def test_a_reference_names_a_field_of_a_secret(manager: Any) -> None:
    assert read_secret(reference(manager, manager.shop)) == SECRET
    assert read_secret(reference(manager, manager.shop, "port")) == "5432"
    for field in ("none", "inner"):
        with pytest.raises(UsageError, match=f"it has no field {field} with a text") as caught:
            read_secret(reference(manager, manager.shop, field))
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("manager", [each for each in KINDS if each != "vault"], indirect=True)
def test_a_reference_without_a_field_names_the_whole_text(manager: Any) -> None:
    name = manager.put("text", f"{SECRET}\n")
    assert read_secret(f"${{{manager.kind}:{name}}}") == SECRET
    with pytest.raises(
        UsageError, match="it is no JSON object, so it has no field password: leave out"
    ) as caught:
        read_secret(reference(manager, name))
    assert SECRET not in str(caught.value)


@each_manager
def test_no_log_shows_a_secret(manager: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    level = logging.getLogger("botocore").level
    read_secret(reference(manager, manager.shop))
    assert SECRET not in caplog.text
    assert logging.getLogger("botocore").level == level


MISSING = {
    "aws-secret": ("none", "has no secret none: check name, region and account"),
    "gcp-secret": ("projects/shop/secrets/none", "has no projects/shop/secrets/none/versions/latest: check"),
    "azure-secret": ("{url}/secrets/none", "has no secret none: check vault, name and version"),
    "vault": ("secret/none", "has no secret at secret/none.*as in secret/data/shop"),
}


@each_manager
def test_a_secret_that_is_missing_is_named(manager: Any) -> None:
    name, complaint = MISSING[manager.kind]
    with pytest.raises(UsageError, match=complaint):
        read_secret(reference(manager, name.format(url=getattr(manager, "url", ""))))


PERMISSIONS = {
    "aws-secret": "no permission .*: allow secretsmanager:GetSecretValue",
    "gcp-secret": "no permission: grant roles/secretmanager.secretAccessor",
    "azure-secret": "no permission .*: grant the role Key Vault Secrets User",
    "vault": "no permission: renew the token, or allow it to read secret/data/shop",
}


@each_manager
def test_a_refusal_names_the_permission(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with manager.deny() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=PERMISSIONS[manager.kind]) as caught:
            read_secret(reference(manager, manager.shop))
    assert "\n" not in str(caught.value)


@each_manager
def test_a_manager_that_does_not_answer_is_no_fault_of_the_configuration(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, name = free_port(), manager.shop
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("VAULT_ADDR", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(gcp, "_client", lambda location: _google_client(f"127.0.0.1:{port}"))
    monkeypatch.setattr(gcp, "_TIMEOUT_SECONDS", 0.5)
    if manager.kind == "azure-secret":
        name = f"https://127.0.0.1:{port}/secrets/shop"
    with pytest.raises(ServiceError, match="does not answer"):
        read_secret(reference(manager, name))


@each_manager
def test_a_missing_library_is_reported_with_its_extra(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULES[manager.kind].__name__)
    monkeypatch.setitem(sys.modules, LIBRARIES[manager.kind], None)
    with pytest.raises(
        MissingExtraError, match=rf"pip install '\.\[{managers.MANAGERS[manager.kind].extra}\]'"
    ):
        read_secret(reference(manager, manager.shop))


def test_fields_of_one_secret_are_read_with_one_request(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("gcp-secret", "azure-secret"):
        found = started[kind]
        _lead(found, monkeypatch)
        found.asked.clear()
        for field in ("user", "password", "user"):
            read_secret(reference(found, found.shop, field))
        assert len(found.asked) == 1
        monkeypatch.setattr(managers, "KEPT_SECONDS", 0.0)
        read_secret(reference(found, found.shop, "user"))
        assert len(found.asked) == 2
        monkeypatch.setattr(managers, "KEPT_SECONDS", 60.0)


def test_credentials_that_are_missing_are_named(
    started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for each in started.values():
        _lead(each, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(managers, "_kept", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "VAULT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", servers.REGION)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setenv("VAULT_ADDR", started["vault"].url)
    # One way to log in, because azure-identity tries a command and a metadata server too.
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", started["azure-secret"].environment["REQUESTS_CA_BUNDLE"])
    for kind, complaint in (
        ("aws-secret", "there are no credentials .*: set AWS_PROFILE"),
        ("gcp-secret", "there are no valid credentials .*GOOGLE_APPLICATION_CREDENTIALS"),
        ("azure-secret", "there are no valid credentials: run az login"),
        ("vault", "there is no token: set VAULT_TOKEN"),
    ):
        with pytest.raises(UsageError, match=complaint):
            read_secret(reference(started[kind], started[kind].shop))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(UsageError, match="no region is set: set AWS_DEFAULT_REGION, or write the ARN"):
        read_secret("${aws-secret:shop}")


def test_the_region_of_an_arn_needs_no_setting(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = started["aws-secret"]
    _lead(aws, monkeypatch)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert aws.shop.startswith(f"arn:aws:secretsmanager:{servers.REGION}:")
    assert read_secret(reference(aws, aws.shop)) == SECRET
    with pytest.raises(UsageError, match="no region is set"):
        read_secret("${aws-secret:shop}")


def test_the_endpoint_of_a_regional_secret_is_in_its_region(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    for location, host in ((None, "secretmanager"), ("europe-west1", "secretmanager.europe-west1.rep")):
        with gcp._client(location) as client:
            assert client.api_endpoint == f"{host}.googleapis.com"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("${gcp-secret:shop}", "the name is no projects/PROJECT/secrets/NAME"),
        ("${azure-secret:shop}", "the name is no identifier of a secret, such as https://VAULT"),
        ("${vault:secret/data/shop}", "name a field of it, as in"),
    ],
)
def test_a_name_of_another_form_is_refused_before_any_request(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_secret(text)


def test_the_latest_and_a_named_version_of_a_vault_are_read(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = started["azure-secret"]
    _lead(found, monkeypatch)
    found.contents["/secrets/shop/17"] = b"old"
    assert read_secret(f"${{azure-secret:{found.shop}/17}}") == "old"
    assert azure.content(found.shop) == FIELDS
