"""What several tests of tables use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.catalogs import catalog_in


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """A catalogue of Iceberg in the test's folder."""
    return catalog_in(tmp_path)
