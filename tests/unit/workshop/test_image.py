"""The image and the manifest: not tried, and said so. Checkers find nothing wrong, and what they name exists."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import click
import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from penstock.cli.commands import cli
from penstock.cli.resolve import resolve

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "clusters" / "image"
DOCKERFILE, MANIFEST = ((FOLDER / name).read_text("utf-8") for name in ("Dockerfile", "kubernetes.yaml"))


def test_image_and_manifest_say_that_they_are_not_tried() -> None:
    assert "NOT TRIED" in DOCKERFILE
    assert "NOT TRIED" in MANIFEST


def test_a_linter_has_nothing_to_say_about_the_image() -> None:
    program = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([program, "--no-color", FOLDER / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_the_manifest_follows_the_schemas_of_kubernetes(version: str) -> None:
    for resource in YAML(typ="safe").load_all(MANIFEST):
        # Strict: a name that the schema does not have is an error.
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_image_installs_extras_that_exist() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= set(setup["options.extras_require"])


def test_the_manifest_runs_a_valid_job_with_options_that_exist(tmp_path: Path) -> None:
    config, deployment = YAML(typ="safe").load_all(MANIFEST)
    (tmp_path / "job.yaml").write_text(config["data"]["job.yaml"])
    assert resolve(str(tmp_path / "job.yaml"), (), {}, {}).template.name == "postgres-to-files"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    name, job, *options = container["args"]
    assert (name, job) == ("run", "/job/job.yaml")
    command = cli.commands["run"]
    known = {each for option in command.params if isinstance(option, click.Option) for each in option.opts}
    assert {each for each in options if each.startswith("--")} <= known
