from __future__ import annotations

from pathlib import Path

import pytest

from penstock.emulators.spanner import EmulatorNotFoundError, find_binary


def test_missing_emulator_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPANNER_EMULATOR_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorNotFoundError, match="gcloud components install cloud-spanner-emulator"):
        find_binary()


def test_named_folder_without_the_emulator_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPANNER_EMULATOR_BIN", str(tmp_path))
    with pytest.raises(
        EmulatorNotFoundError, match=r"SPANNER_EMULATOR_BIN is .* which holds no emulator_main"
    ):
        find_binary()


def test_named_folder_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "emulator_main"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("SPANNER_EMULATOR_BIN", str(tmp_path))
    assert find_binary() == binary
