"""The packages that users import from, as `penstock` names them, and the names that they list."""

from __future__ import annotations

from importlib import import_module

import pytest

from tools.api_reference import packages

PACKAGES = packages()


def test_the_sources_and_sinks_are_among_the_public_packages() -> None:
    expected = ("io.spanner", "io.bigtable", "io.files", "transforms", "runner")
    assert {f"penstock.{name}" for name in expected} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_package_lists_its_names_and_has_them(package: str) -> None:
    module = import_module(package)
    names = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if getattr(module, name, None) is None] == []
    assert [name for name in names if name.startswith("_")] == []
