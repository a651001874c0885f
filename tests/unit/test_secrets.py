"""References to secrets: read when they are needed, never shown."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock import secret_managers
from penstock.errors import ServiceError, UsageError
from penstock.secrets import (
    has_reference,
    is_local_reference,
    is_reference,
    read_references,
    read_secret,
    read_shown_references,
    with_stand_ins,
)

MANAGED = [each.example for each in secret_managers.MANAGERS.values()]


def test_a_reference_names_a_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    assert read_secret("${env:KEY}", {"KEY": "from the environment"}) == "from the environment"
    assert read_secret(f"${{file:{tmp_path}/key}}") == "from a file"
    assert is_reference("${env:KEY}")
    assert not is_reference("x${env:KEY}")


def test_references_inside_a_text_are_replaced_once() -> None:
    environment = {"HOST": "db", "KEY": "${env:HOST}"}
    assert (
        read_references("host=${env:HOST} password=${env:KEY}", environment) == "host=db password=${env:HOST}"
    )
    assert has_reference("host=${env:HOST}")
    assert not has_reference("host=$HOST ${HOST}")


def test_a_missing_secret_is_named_and_plain_text_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the environment variable KEY is not set"):
        read_secret("${env:KEY}", {"KEY": ""})
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_secret(f"${{file:{tmp_path}/none}}")
    with pytest.raises(UsageError, match="never as plain text") as caught:
        read_secret("hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("reference", MANAGED)
def test_a_secret_of_a_secret_manager_is_no_setting(reference: str) -> None:
    assert is_reference(reference)
    assert not is_local_reference(reference)
    with pytest.raises(UsageError, match="names a secret, and outputs show this value"):
        read_shown_references(f"s3://{reference}/lake")
    assert read_shown_references("${env:NAME}", {"NAME": "lake"}) == "lake"


@pytest.mark.parametrize("reference", MANAGED)
def test_a_check_asks_no_secret_manager(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_managers, "import_module", None)
    assert with_stand_ins(reference) == "dbname=secret"
    assert with_stand_ins(f"host=db password={reference}") == "host=db password=secret"


def test_an_error_of_a_secret_manager_names_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def content(path: str) -> str:
        raise ServiceError(f"{path} does not answer")

    monkeypatch.setattr(secret_managers, "import_module", lambda name: SimpleNamespace(content=content))
    message = "${vault:secret/shop#key} cannot be read: secret/shop does not answer"
    with pytest.raises(ServiceError, match=re.escape(message)):
        read_secret("${vault:secret/shop#key}")
