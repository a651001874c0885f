"""References to secrets: read when they are needed, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.secrets import has_reference, is_reference, read_references, read_secret


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
