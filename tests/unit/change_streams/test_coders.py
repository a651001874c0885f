"""Coders of the elements that sources read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SetupError
from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock.io.bigtable.coder import ChangeStreamCoder as BigtableCoder
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.coder import ChangeStreamCoder as SpannerCoder

SPANNER = ReadFromSpannerChangeStream(project="p", instance="i", database="d", change_stream="S").stream
BIGTABLE = ReadFromBigtableChangeStream(project="p", instance="i", table="t").stream


@pytest.mark.parametrize(
    ("encoded", "coder"),
    [(SpannerCoder().encode(SPANNER), BigtableCoder()), (BigtableCoder().encode(BIGTABLE), SpannerCoder())],
    ids=["spanner as bigtable", "bigtable as spanner"],
)
def test_a_checkpoint_of_another_kind_of_source_is_refused_with_the_remedy(
    encoded: bytes, coder: Any
) -> None:
    with pytest.raises(
        SetupError, match="reads another kind of source. Pass another folder as --checkpoint_dir"
    ):
        coder.decode(encoded)
    assert not SetupError.retryable
