"""Which Spanner `make run` uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.demo import service
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The services that were started, by name; nothing starts."""
    names: list[str] = []
    for kind in (SpannerEmulator, SimulatedSpanner):
        monkeypatch.setattr(kind, "start", lambda name=kind.__name__, **_: names.append(name))
    return names


def test_the_demo_uses_googles_emulator_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[str]
) -> None:
    emulator = tmp_path / "emulator_main"
    emulator.touch(mode=0o755)
    monkeypatch.setenv("SPANNER_EMULATOR_BIN", str(emulator))
    choice = service.choose(simulated=False, seed=1)
    choice.start()
    assert started == ["SpannerEmulator"]
    assert choice.line.startswith("Using Google's Spanner emulator, because it is installed")


def test_without_the_cloud_sdk_the_demo_uses_the_simulated_service_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[str]
) -> None:
    monkeypatch.delenv("SPANNER_EMULATOR_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = service.choose(simulated=False, seed=1)
    choice.start()
    assert started == ["SimulatedSpanner"]
    assert choice.line.startswith(
        "Using the simulated Spanner service, because Google's Spanner emulator is not installed"
    )
    assert "\n" not in choice.line


def test_the_option_forces_the_simulated_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[str]
) -> None:
    emulator = tmp_path / "emulator_main"
    emulator.touch(mode=0o755)
    monkeypatch.setenv("SPANNER_EMULATOR_BIN", str(emulator))
    choice = service.choose(simulated=True, seed=1)
    choice.start()
    assert started == ["SimulatedSpanner"]
    assert "because --simulated was given" in choice.line
