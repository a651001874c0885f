"""Makes a sink with the examples of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

from penstock.pipelines.sinks import SinkKind
from penstock.transforms.formats.debezium import DebeziumFormat

_DSN = "${env:TARGET_DSN}"


def made_with_examples(kind: SinkKind, **given: Any) -> Any:
    """Return the transform of a sink with its examples; `given` replaces some of them."""
    dsn = "host=db.example.com dbname=shop"  # a pipeline reads references before it makes the sink
    examples: dict[str, Any] = {
        name: dict([text.split("=", 1)]) if get_origin(each.type) is Mapping else text.replace(_DSN, dsn)
        for name, each in kind.arguments().items()
        if (text := each.accepts.example) is not None
    }
    if kind.takes == "records":
        examples["format"] = DebeziumFormat("shop")
    if kind.takes == "lines":
        examples["table"] = "Orders"
    return kind.transform()(**{**examples, **given})
