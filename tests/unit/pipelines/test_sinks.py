"""Every sink of the templates can be made with its examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_origin

import pytest

from penstock.options import arguments_of
from penstock.pipelines.sinks import SINKS, SinkKind
from penstock.transforms.formats.debezium import DebeziumFormat


@pytest.mark.parametrize("kind", SINKS.values(), ids=SINKS)
def test_a_sink_can_be_made_with_its_examples(kind: SinkKind) -> None:
    known = arguments_of(kind.transform())
    given = {
        name: dict([text.split("=", 1)]) if get_origin(known[name].type) is Mapping else text
        for name, text in kind.examples.items()
    }
    if kind.takes == "records":
        given["format"] = DebeziumFormat("shop")
    examples = {name: each.accepts.example for name, each in kind.arguments().items() if each.accepts.example}
    assert kind.transform()(**{**examples, **given})
