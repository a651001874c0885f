"""What ships: every module, importable from an install in an empty folder, without clients or Spark."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("google.cloud.spanner_v1", "google.cloud.bigtable", "pyspark", "py4j", "grpc")
"""What a program pays for only when it uses it."""


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def mapped_folders() -> dict[str, Path]:
    """Package to source folder, as setup.cfg says."""
    lines = setup_cfg()["options"]["package_dir"].strip().splitlines()
    pairs = (line.split("=") for line in lines)
    return {package.strip(): ROOT / folder.strip() for package, folder in pairs}


def packages_of_the_tree() -> set[str]:
    """Every folder that holds an `__init__.py`, named as it is imported."""
    found = set()
    for package, folder in mapped_folders().items():
        for module in folder.rglob("__init__.py"):
            below = module.parent.relative_to(folder).parts
            found.add(".".join([package, *below]))
    return found


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run a command in `folder`, where the work tree is on no path, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what is under version control or about to be."""
    source = tmp_path_factory.mktemp("source")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target), ".", folder=source)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a program that finds penstock in an install of its own, and nowhere else."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--target", str(target), str(wheel), folder=target)
    return {"PYTHONPATH": str(target)}


def test_setup_cfg_lists_exactly_the_packages_of_the_tree() -> None:
    assert set(setup_cfg()["options"]["packages"].split()) == packages_of_the_tree()


def test_the_io_folder_at_the_root_is_no_package_of_its_own() -> None:
    assert not (ROOT / "io" / "__init__.py").exists()  # tools would take it for the standard library's


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = set()
    for package, folder in mapped_folders().items():
        for file in folder.rglob("*"):
            if file.suffix in (".py", ".yaml", ".typed", ".properties") and "__pycache__" not in file.parts:
                expected.add("/".join([*package.split("."), *file.relative_to(folder).parts]))
    assert expected
    assert expected - held == set()


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    others = [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("penstock")]
    assert others == []


def test_the_wheel_carries_licence_and_notice(wheel: Path) -> None:
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert {"LICENSE", "NOTICE"} <= names


@pytest.mark.slow
def test_an_installed_copy_is_the_one_that_is_imported(installed: Mapping[str, str], tmp_path: Path) -> None:
    program = "import penstock; print(penstock.__file__)"
    where = run(sys.executable, "-c", program, folder=tmp_path, **installed)
    assert where.startswith(installed["PYTHONPATH"])


@pytest.mark.slow
def test_the_command_works_from_an_installed_copy(installed: Mapping[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.templates.cli"]
    assert __version__ in run(*command, "--version", folder=tmp_path, **installed)
    assert "spanner-to-files" in run(*command, "list", folder=tmp_path, **installed)


@pytest.mark.slow
def test_every_module_and_public_name_can_be_imported_from_an_installed_copy(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    program = (
        "import importlib, pkgutil, penstock\n"
        "names = [m.name for m in pkgutil.walk_packages(penstock.__path__, 'penstock.')]\n"
        "modules = [importlib.import_module(name) for name in names]\n"
        "[getattr(module, name) for module in modules for name in getattr(module, '__all__', ())]\n"
        "print(len(names))"
    )
    assert int(run(sys.executable, "-c", program, folder=tmp_path, **installed)) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    ["penstock", "penstock.io.spanner", "penstock.io.bigtable", "penstock.io.files", "penstock.runner"],
)
def test_a_front_door_opens_without_clients_or_spark(
    package: str, installed: Mapping[str, str], tmp_path: Path
) -> None:
    """What Beam itself imports does not count."""
    program = (
        "import importlib, json, sys\n"
        "import apache_beam\n"
        "before = set(sys.modules)\n"
        f"importlib.import_module({package!r})\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(run(sys.executable, "-c", program, folder=tmp_path, **installed))
    assert package in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


@pytest.mark.slow
def test_the_package_itself_imports_nothing_but_the_standard_library(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    program = "import sys, json, penstock; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run(sys.executable, "-c", program, folder=tmp_path, **installed))
    assert not [name for name in loaded if name.startswith(("apache_beam", "google.", "pyspark"))]


def test_a_public_package_says_what_its_public_names_are() -> None:
    for package in ("penstock.io.spanner", "penstock.io.bigtable", "penstock.io.files", "penstock.runner"):
        module = importlib.import_module(package)
        assert module.__all__, package
        assert module.__doc__, package


@pytest.mark.slow
def test_beams_own_runner_works_beside_our_options(installed: Mapping[str, str], tmp_path: Path) -> None:
    """Beam collects the options of every class that is imported; a name taken twice breaks every pipeline."""
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
