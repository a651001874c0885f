"""The import contracts hold when modules are really imported, and `make lint` checks every package.

import-linter reads the source, so it cannot see that importing `penstock.a.b` first runs `penstock/a/__init__.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
import tomllib

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PURE_ALSO_THROUGH_THEIR_PACKAGES = [
    "Rules of the runner's protocol, store, grouping and generated loops are pure",
    "Rules of the sources are pure",
    "Rules of the staged sinks are pure",
    "Decoding and prefetching know protobuf, but no Beam and no client",
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


def members(source: str, modules: Sequence[str]) -> list[str]:
    """Return the module `source` and those below it, without programs; `*` stands for one name."""
    pattern = re.compile(re.escape(source).replace(r"\*", r"[^.]+") + r"(\..+)?")
    return [module for module in modules if pattern.fullmatch(module) and not module.endswith(".__main__")]


@pytest.mark.parametrize("contract", PURE_ALSO_THROUGH_THEIR_PACKAGES)
def test_importing_a_pure_module_imports_no_forbidden_library(contract: str, modules: Sequence[str]) -> None:
    (found,) = (each for each in CONTRACTS if each["name"] == contract)
    pure = {source: members(source, modules) for source in found["source_modules"]}
    assert [source for source, matching in pure.items() if not matching] == []
    names = sorted({module for matching in pure.values() for module in matching})
    loaded = python(
        "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)",
        *names,
    )
    assert set(names) <= set(loaded)
    # An empty namespace package `google` may be there from the start; what it holds counts.
    roots = tuple(f"{name}." for name in found["forbidden_modules"])
    assert [name for name in loaded if name.startswith(roots)] == []


def test_waiting_for_a_job_needs_only_what_the_pages_install_beside_it() -> None:
    """A scheduler has an environment of its own, in which Beam and Spark are not installed."""
    loaded = python(
        "from penstock.runner import RemoteJob\n"
        "from penstock.io.files import complete_until\n"
        "from penstock.runner.protocol import Coordinator, EpochState\n"
        "from penstock.runner.store import Checkpoint\n"
        "import tempfile\n"
        "folder = tempfile.mkdtemp()\n"
        "Coordinator(Checkpoint.open(folder)).take_over()\n"
        "RemoteJob.open(folder).complete_until(), complete_until(folder)\n"
        "print(*sys.modules)"
    )
    # The other names are of the interpreter's start-up, such as the finders of editable installs.
    others = {name.partition(".")[0] for name in loaded if not name.startswith("_")} - sys.stdlib_module_names
    assert others == {"msgspec", "penstock", "typing_extensions"}
    assert "pip install msgspec typing_extensions" in (ROOT / "docs" / "schedulers.md").read_text("utf-8")


def test_no_modules_import_each_other_in_a_circle_also_in_functions_and_for_annotations() -> None:
    # A module that is imported inside of a function is still one that a reader must hold in the head together with it.
    graph = grimp.build_graph("penstock", "penstock_emulators", exclude_type_checking_imports=False)
    modules = {module for module in graph.modules if not graph.find_children(module)}
    imports = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    # A module that is also a program imports itself by its name, so that workers can import what it defines.
    imports = {module: imported - {module} for module, imported in imports.items()}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle
