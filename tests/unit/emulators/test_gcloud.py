"""Where the emulators of the Google Cloud SDK are looked for, and what is said when they are missing."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from penstock_emulators.gcloud import BIGTABLE, SPANNER, Component, EmulatorNotFoundError
from penstock_emulators.server_process import READY, ServerProcess, free_port

both = pytest.mark.parametrize("emulator", [SPANNER, BIGTABLE], ids=lambda each: each.name)


def make_program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@both
def test_a_missing_emulator_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator: Component
) -> None:
    monkeypatch.delenv(emulator.variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorNotFoundError, match=f"gcloud components install {emulator.component}"):
        emulator.find_binary()


@both
def test_a_named_folder_without_the_emulator_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator: Component
) -> None:
    monkeypatch.setenv(emulator.variable, str(tmp_path))
    with pytest.raises(EmulatorNotFoundError, match=f"{emulator.variable} is .* no {emulator.binary} there"):
        emulator.find_binary()


@both
def test_the_variable_names_the_program_or_its_folder_and_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator: Component
) -> None:
    binary = make_program(tmp_path / emulator.binary)
    for named in (tmp_path, binary):
        monkeypatch.setenv(emulator.variable, str(named))
        assert emulator.find_binary() == binary


@both
@pytest.mark.parametrize("asked", [False, True])
def test_the_emulator_is_found_in_the_sdk_of_gcloud(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator: Component, asked: bool
) -> None:
    root = tmp_path / "sdk"
    binary = make_program(root / emulator.folder / emulator.binary)
    if asked:  # a gcloud of a package manager is not in the SDK, and knows where that is
        gcloud = make_program(tmp_path / "bin" / "gcloud", f"echo {root}")
    else:
        gcloud = tmp_path / "bin" / "gcloud"
        gcloud.parent.mkdir()
        gcloud.symlink_to(make_program(root / "bin" / "gcloud"))
    monkeypatch.delenv(emulator.variable, raising=False)
    monkeypatch.setenv("PATH", str(gcloud.parent))
    assert emulator.find_binary() == binary


def test_a_server_process_prints_its_address_and_ends_with_its_children() -> None:
    program = f"import time; print('{READY}localhost:1', flush=True); time.sleep(60)"
    server = ServerProcess([sys.executable, "-c", program], None, prints_address=True)
    assert server.address(time.monotonic() + 30) == "localhost:1"
    assert server.runs
    server.stop()
    assert not server.runs


def test_a_server_process_that_ends_has_no_address(tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = ServerProcess(["/bin/sh", "-c", "echo why >&2"], log, prints_address=True)
    assert server.address(time.monotonic() + 30) is None
    server.stop()
    assert log.read_text() == "why\n"


def test_a_port_of_another_process_is_not_mistaken_for_a_server_that_ended() -> None:
    port = free_port()
    with socket.create_server(("localhost", port)):
        server = ServerProcess(["/bin/sh", "-c", "exit 1"], None)
        server.wait(60)
        assert not server.listens(port, time.monotonic() + 30)
        server.stop()
