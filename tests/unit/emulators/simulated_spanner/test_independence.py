"""The simulation is written from the documentation: it shares no code with the reader that it tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import penstock_emulators.simulated_spanner as package
for module in pkgutil.iter_modules(package.__path__):
    if module.name != "__main__":
        importlib.import_module(f"{package.__name__}.{module.name}")
foreign = [name for name in sys.modules if name.startswith(("apache_beam", "penstock."))]
# Not of a reader: the error that every emulator raises if it does not start.
own = ("penstock_emulators", "penstock.errors")
print([name for name in foreign if not name.startswith(own)])
"""


@pytest.mark.slow
def test_the_simulated_spanner_imports_neither_beam_nor_other_parts_of_penstock() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
