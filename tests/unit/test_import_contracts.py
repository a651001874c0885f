"""The import contracts hold when modules are really imported, and `make lint` checks every package.

import-linter reads the source, so it cannot see that importing `penstock.a.b` first runs `penstock/a/__init__.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PURE_ALSO_THROUGH_THEIR_PACKAGES = [
    "Rules of the runner's protocol, store and grouping are pure",
    "Rules of the staged sinks are pure",
]


def python(program: str, *arguments: str) -> list[str]:
    """Run a program in a fresh interpreter that finds this checkout's penstock; return the words it prints."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{program}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def modules() -> Sequence[str]:
    """Every module of penstock, found without importing any."""
    files = [file.relative_to(ROOT / "src") for file in (ROOT / "src").glob("penstock/**/*.py")]
    for link in (each for each in (ROOT / "src").glob("penstock/**/*") if each.is_symlink()):
        files += [file.relative_to(ROOT / "src") for file in link.glob("**/*.py")]
    return sorted({".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files})


@pytest.mark.parametrize("contract", PURE_ALSO_THROUGH_THEIR_PACKAGES)
def test_importing_a_pure_module_imports_no_forbidden_library(contract: str, modules: Sequence[str]) -> None:
    (found,) = (each for each in CONTRACTS if each["name"] == contract)
    pure = [
        module
        for module in modules
        if any(module == source or module.startswith(f"{source}.") for source in found["source_modules"])
    ]
    assert len(pure) >= len(found["source_modules"])
    loaded = python(
        "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)",
        *pure,
    )
    assert set(pure) <= set(loaded)
    # An empty namespace package `google` may be there from the start; what it holds counts.
    roots = tuple(f"{name}." for name in found["forbidden_modules"])
    assert [name for name in loaded if name.startswith(roots)] == []
