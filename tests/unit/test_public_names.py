"""The packages that users import from, as `penstock` names them, and the names that they list."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

import penstock

PACKAGES = tuple(
    name
    for name in re.findall(r"`([a-z._]+)`", penstock.__doc__ or "")
    if name not in ("__all__", "pipelines")
)


def test_the_sources_and_sinks_are_among_the_public_packages() -> None:
    assert {"io.spanner", "io.bigtable", "io.files", "transforms", "runner"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_package_lists_its_names_and_has_them(package: str) -> None:
    module = import_module(f"penstock.{package}")
    names = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if getattr(module, name, None) is None] == []
    assert [name for name in names if name.startswith("_")] == []
