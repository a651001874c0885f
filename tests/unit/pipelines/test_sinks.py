"""Every sink of the templates can be made with its examples."""

from __future__ import annotations

import pytest

from penstock.pipelines.sinks import SINKS, SinkKind


@pytest.mark.parametrize("kind", SINKS.values(), ids=SINKS)
def test_a_sink_can_be_made_with_its_examples(kind: SinkKind) -> None:
    assert kind.load()(**kind.examples)
