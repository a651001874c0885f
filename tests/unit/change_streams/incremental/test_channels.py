"""The folder of signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import SetupError
from penstock.io.change_streams.incremental.channels import FolderChannel
from penstock.io.change_streams.incremental.signal_folder import write_signal


def test_a_job_makes_its_folder_so_that_the_command_finds_it(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "signals"
    channel = FolderChannel(str(folder))
    assert folder.is_dir()
    assert channel.poll(None) is None
    write_signal(folder, "7", "pause-snapshot", {}, 1)
    polled = channel.poll(None)
    assert polled is not None
    assert [signal.id for signal in polled.signals] == ["7"]
    assert channel.poll(polled.position) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="signal_folder .*/file/signals cannot be made"):
        FolderChannel(str(tmp_path / "file" / "signals"))
