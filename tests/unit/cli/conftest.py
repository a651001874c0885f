"""The commands change logging and warnings of their process. Tests after these must not notice."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_and_warnings_as_before() -> Iterator[None]:
    root, beam = logging.getLogger(), logging.getLogger("apache_beam")
    handlers, filters, levels = list(root.handlers), list(root.filters), (root.level, beam.level)
    with warnings.catch_warnings():
        yield
    root.handlers[:], root.filters[:] = handlers, filters
    root.setLevel(levels[0])
    beam.setLevel(levels[1])
    logging.captureWarnings(False)
