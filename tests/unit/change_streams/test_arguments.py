"""Checks of the times that a reader is given."""

from __future__ import annotations

import pytest

from penstock.errors import SetupError
from penstock.io.change_streams.arguments import check_end
from penstock.io.spanner import ReadFromSpannerChangeStream


def read(**times: object) -> ReadFromSpannerChangeStream:
    names = {"project": "p", "instance": "i", "database": "d", "change_stream": "C"}
    return ReadFromSpannerChangeStream(**names, **times)


def test_an_end_in_the_past_is_accepted_if_the_pipeline_may_resume() -> None:
    """Its start defaults to now, which a resumed pipeline does not use."""
    assert read(end="2026-01-01T00:00:00Z").stream.end is not None


def test_an_end_in_the_past_is_refused_at_the_first_start() -> None:
    with pytest.raises(
        SetupError, match="end 2026-01-01T00:00:00.000000000Z is before .* pass an earlier start"
    ):
        read(end="2026-01-01T00:00:00Z").check_start()


@pytest.mark.parametrize("end", [None, 10, 11])
def test_an_end_at_or_after_the_start_is_accepted(end: int | None) -> None:
    check_end(10, end, SetupError)
