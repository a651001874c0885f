"""Values that the emulator's command line refuses before it starts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from penstock_emulators import commands


@pytest.mark.parametrize(
    ("flag", "value"), [("--port", "65536"), ("--port", "-1"), ("--churn-seconds", "-1")]
)
def test_a_flag_refuses_an_impossible_number(monkeypatch: pytest.MonkeyPatch, flag: str, value: str) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was started")

    monkeypatch.setattr(commands, "run", never)
    done = CliRunner().invoke(commands.bigtable, [flag, value])
    assert (done.exit_code, f"Invalid value for '{flag}'" in done.output) == (2, True)
