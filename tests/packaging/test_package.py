"""The wheel has every module. An installed copy can be imported in an empty folder, without clients or Spark."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock import __version__
from tools.dist import build
from tools.environments import VERSIONS, install_command

pytestmark = pytest.mark.long(seconds=15)

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (".html", ".css", ".js", ".svg")
HEAVY = ("google.cloud.spanner_v1", "google.cloud.bigtable", "pyspark", "py4j", "grpc")
"""What a program pays for only when it uses it."""


def package_folders() -> dict[str, Path]:
    """Return every package below src/ with its folder, including packages in the linked root folders."""
    source = ROOT / "src"
    found = {}
    for folder, subfolders, files in os.walk(source / "penstock", followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        if "__init__.py" in files:
            found[".".join(Path(folder).relative_to(source).parts)] = Path(folder)
    return found


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run a command in `folder`, without the work tree on any path, and return its output."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of penstock and of penstock-emulators, as `make dist` builds them."""
    penstock, emulators = build(tmp_path_factory.mktemp("dist"))
    return penstock, emulators


@pytest.fixture(scope="session")
def wheel(wheels: tuple[Path, Path]) -> Path:
    """The wheel of penstock."""
    return wheels[0]


@pytest.fixture(scope="session")
def installed(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a program that finds both distributions only in a separate install."""
    target = tmp_path_factory.mktemp("site")
    command = install_command(sys.executable, "--no-deps", "--target", str(target), *map(str, wheels))
    run(*command, folder=target)
    return {"PYTHONPATH": str(target)}


def test_every_package_of_the_root_folders_is_linked_into_the_source_tree() -> None:
    linked = {folder.resolve() for folder in package_folders().values()}
    for top in ("io", "pipelines", "runner", "templates", "transforms"):
        for module in (ROOT / top).rglob("__init__.py"):
            assert module.parent.resolve() in linked, f"add a link to {module.parent} below src/penstock"


def test_the_io_folder_at_the_root_is_not_a_package() -> None:
    assert not (ROOT / "io" / "__init__.py").exists()  # tools would take it for the standard library's


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = set()
    for package, folder in package_folders().items():
        for file in folder.iterdir():
            if file.suffix in (".py", ".yaml", ".typed", ".properties"):
                expected.add("/".join([*package.split("."), file.name]))
    assert expected
    # The pages of `penstock ui` are in folders that are no packages.
    ui = ROOT / "src" / "penstock" / "ui"
    pages = {path.relative_to(ROOT / "src").as_posix() for path in ui.rglob("*") if path.suffix in PAGES}
    assert len(pages) > 5
    expected |= pages
    assert expected - held == set()


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    others = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("penstock")]
    assert others == []


def test_the_wheel_carries_licence_and_notice(wheel: Path) -> None:
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert {"LICENSE", "NOTICE"} <= names


def test_an_installed_copy_is_the_one_that_is_imported(installed: Mapping[str, str], tmp_path: Path) -> None:
    program = "import penstock; print(penstock.__file__)"
    where = run(sys.executable, "-c", program, folder=tmp_path, **installed)
    assert where.startswith(installed["PYTHONPATH"])


def test_the_command_works_from_an_installed_copy(installed: Mapping[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main"]
    assert __version__ in run(*command, "--version", folder=tmp_path, **installed)
    assert "spanner-to-files" in run(*command, "list", folder=tmp_path, **installed)


def test_the_wheel_of_the_emulators_holds_every_module_of_them_and_nothing_else(
    wheels: tuple[Path, Path],
) -> None:
    source = ROOT / "emulators" / "src"
    held = {name for name in zipfile.ZipFile(wheels[1]).namelist() if ".dist-info/" not in name}
    assert held == {
        str(file.relative_to(source))
        for file in (source / "penstock_emulators").rglob("*")
        if file.suffix in (".py", ".typed")
    }


def test_an_emulator_runs_from_an_installed_copy(installed: Mapping[str, str], tmp_path: Path) -> None:
    """The service, and a client of it, without the clone on any path."""
    program = (
        "import penstock_emulators\n"
        "from penstock_emulators.simulated_spanner import SimulatedSpanner\n"
        "if __name__ == '__main__':\n"
        "    with SimulatedSpanner.start() as service:\n"
        "        service.create_database('p', 'i', 'd', ['CREATE TABLE T (K INT64) PRIMARY KEY (K)'])\n"
        "    print(penstock_emulators.__file__)\n"
    )
    (tmp_path / "program.py").write_text(program)
    where = run(sys.executable, "program.py", folder=tmp_path, **installed)
    assert where.startswith(installed["PYTHONPATH"])


def test_every_module_and_public_name_can_be_imported_from_an_installed_copy(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    program = (
        "import importlib, pkgutil, penstock\n"
        "names = [m.name for m in pkgutil.walk_packages(penstock.__path__, 'penstock.')]\n"
        # Airflow has an environment of its own; tests/integration/schedulers imports the module there.
        "names.remove('penstock.airflow')\n"
        "modules = [importlib.import_module(name) for name in names]\n"
        "[getattr(module, name) for module in modules for name in getattr(module, '__all__', ())]\n"
        "print(len(names))"
    )
    assert int(run(sys.executable, "-c", program, folder=tmp_path, **installed)) > 20


PUBLIC = ("penstock", "penstock.io.spanner", "penstock.io.bigtable", "penstock.io.files", "penstock.runner")


def test_public_packages_are_imported_without_clients_or_spark(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    """Modules that Beam itself imports are allowed."""
    program = (
        "import importlib, json, sys\n"
        "import apache_beam\n"
        "before = set(sys.modules)\n"
        f"[importlib.import_module(package) for package in {PUBLIC!r}]\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(run(sys.executable, "-c", program, folder=tmp_path, **installed))
    assert set(PUBLIC) <= set(loaded)
    assert [name for name in loaded if name.startswith(HEAVY)] == []


NEEDS = {
    "penstock.cli.commands": "cli",
    "penstock.launch.live_line": "cli",
    "penstock.runner.pipeline_runner": "spark",
    "penstock.runner.tasks.handover": "runner",
    "penstock.runner.daemon": "spark",
    "penstock.io.spanner.client": "spanner",
    "penstock.io.bigtable.client": "bigtable",
    "penstock.io.postgres.client": "postgres",
    "penstock.io.ydb.client": "ydb",
    "penstock.runner.openlineage.events": "openlineage",
}
"""A module that needs an extra, and which."""

WITHOUT_EXTRAS = (
    "penstock.event.coder",
    "penstock.io.bigtable",
    "penstock.io.bigtable.read",
    "penstock.io.files",
    "penstock.io.files.write",
    "penstock.io.postgres",
    "penstock.io.postgres.read",
    "penstock.io.spanner",
    "penstock.io.spanner.read",
    "penstock.io.ydb",
    "penstock.io.ydb.read",
    "penstock.launch.run",
    "penstock.object_stores.store",
    "penstock.pipelines.bigtable_to_files",
    "penstock.pipelines.postgres_to_files",
    "penstock.pipelines.spanner_to_files",
    "penstock.pipelines.ydb_to_files",
    "penstock.telemetry.status",
    "penstock.transforms",
)

IMPORTED_WITH = r"""
import importlib, importlib.abc, importlib.metadata as metadata, json, os, re, sys
from packaging.requirements import Requirement

def installed_by(name, extra, seen):
    if (name, extra) in seen:
        return
    seen.add((name, extra))
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return  # for another platform
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for each in {"", *requirement.extras}:
                installed_by(re.sub(r"[-_.]+", "-", requirement.name).lower(), each, seen)

def allowed_with(extra):
    found = set()
    for each in {"", extra}:
        installed_by("penstock", each, found)
    return {name for name, _ in found}

owners = {}  # module path without suffix: the distributions that have files below it
for distribution in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    for file in distribution.files or ():
        if file.suffix in (".py", ".so"):
            parts = [*file.parts[:-1], file.name.partition(".")[0]]
            for end in range(1, len(parts) + 1):
                owners.setdefault(".".join(parts[:end]), set()).add(name)

class OnlyAllowed(importlib.abc.MetaPathFinder):
    allowed = allowed_with("")

    def find_spec(self, name, path=None, target=None):
        if name in owners and not owners[name] & self.allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

def failures(names):
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
    return failed

finder = OnlyAllowed()
sys.meta_path.insert(0, finder)
import apache_beam  # once, with what the base install brings; each extra is tried in a fork

for extra, names in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        finder.allowed = allowed_with(extra)
        print(json.dumps([extra, failures(names)]), flush=True)
        os._exit(0)
    os.wait()
"""
"""Imports modules in processes that see only what the base install and one extra bring."""


def test_each_part_imports_with_its_extra_alone(installed: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text(IMPORTED_WITH)
    asked = {"": [*WITHOUT_EXTRAS, *NEEDS], **{extra: list(NEEDS) for extra in NEEDS.values()}}
    told = run(sys.executable, "imported.py", json.dumps(asked), folder=tmp_path, **installed)
    failed = dict(json.loads(line) for line in told.splitlines())
    assert failed.keys() == asked.keys()
    for extra, modules in failed.items():
        brought = {extra, "runner"} if extra == "spark" else {extra}
        expected = [name for name, needed in NEEDS.items() if needed not in brought]
        assert sorted(modules) == sorted(expected), (extra, modules)


def test_the_package_itself_imports_nothing_but_the_standard_library(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    program = "import sys, json, penstock; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run(sys.executable, "-c", program, folder=tmp_path, **installed))
    assert not [name for name in loaded if name.startswith(("apache_beam", "google.", "pyspark"))]


def test_each_public_package_lists_its_public_names() -> None:
    for package in ("penstock.io.spanner", "penstock.io.bigtable", "penstock.io.files", "penstock.runner"):
        module = importlib.import_module(package)
        assert module.__all__, package
        assert module.__doc__, package


def test_the_direct_runner_works_with_our_options(installed: Mapping[str, str], tmp_path: Path) -> None:
    """Beam collects the options of every imported class; a duplicate option name breaks every pipeline."""
    program = (
        "import apache_beam as beam\n"
        "from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions\n"
        "import penstock.runner\n"
        "from penstock.runner import PySparkOptions\n"
        "from apache_beam.testing.util import assert_that, equal_to\n"
        "options = PipelineOptions(['--runner=DirectRunner', '--parallelism=3', '--spark_parallelism=2'])\n"
        "assert options.view_as(FlinkRunnerOptions).parallelism == 3\n"
        "assert options.view_as(PySparkOptions).spark_parallelism == 2\n"
        "with beam.Pipeline(options=options) as pipeline:\n"
        "    assert_that(pipeline | beam.Create([1, 2]) | beam.Map(lambda n: n * 2), equal_to([2, 4]))\n"
        "print('ran')"
    )
    assert run(sys.executable, "-c", program, folder=tmp_path, **installed) == "ran\n"


OF_EXTRAS = re.compile(
    r"google-cloud-.*|google-api.*|boto3|botocore|azure-.*|obstore|click|rich|ruamel.*|pydantic|pyspark|py4j|psycopg.*|ydb|"
    r"confluent-kafka|deltalake|pyiceberg|opentelemetry-.*|openlineage-.*|prometheus-client|venv-pack2"
)
"""Distributions that only extras may bring."""


@pytest.mark.campaign
def test_the_base_install_brings_no_cloud_clients_and_no_libraries_of_the_command(
    wheel: Path, tmp_path: Path
) -> None:
    """In a fresh environment, where the wheel decides what is installed."""
    run(sys.executable, "-m", "venv", str(tmp_path / "environment"), folder=tmp_path)
    program = str(tmp_path / "environment" / "bin" / "python")
    run(*install_command(program, *VERSIONS, str(wheel)), folder=tmp_path)
    listed = json.loads(run(program, "-m", "pip", "list", "--format", "json", folder=tmp_path))
    assert [each["name"] for each in listed if OF_EXTRAS.fullmatch(each["name"].lower())] == []
    imports = "; ".join(f"import {name}" for name in WITHOUT_EXTRAS)
    run(program, "-c", imports, folder=tmp_path)
    command = [str(tmp_path / "environment" / "bin" / "penstock"), "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "pip install '.[cli]'" in done.stderr


@pytest.mark.spark
@pytest.mark.campaign
def test_the_quickstart_runs_from_wheels_in_a_fresh_environment(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two commands, without the clone: install, and see that nothing is lost."""
    run(sys.executable, "-m", "venv", str(tmp_path / "environment"), folder=tmp_path)
    programs = tmp_path / "environment" / "bin"
    install = install_command(str(programs / "python"), *VERSIONS, f"{wheels[0]}[quickstart]", str(wheels[1]))
    run(*install, folder=tmp_path)
    printed = run(str(programs / "penstock"), "quickstart", folder=tmp_path)
    assert "lost 0, doubled 0, out of order 0" in printed
    assert f"{programs / 'penstock'} status " in printed  # it is not on PATH
