"""Packages that load their names on first use load every name that they list."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.lazy import load


@pytest.mark.slow
@pytest.mark.parametrize("source", ["spanner", "bigtable"])
def test_every_public_name_of_a_source_can_be_loaded(source: str) -> None:
    program = (
        f"import penstock.io.{source} as package\n"
        "print([name for name in package.__all__ if getattr(package, name) is None])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error_that_names_the_package() -> None:
    with pytest.raises(AttributeError, match=r"module 'penstock.io.spanner' has no attribute 'Nothing'"):
        load("penstock.io.spanner", {}, "Nothing")
