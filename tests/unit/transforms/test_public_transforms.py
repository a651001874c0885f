"""What all public transforms have in common: arguments by name, units, display data, and the four promises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from penstock import publish, transforms
from penstock.io import bigtable, files, spanner, staging
from penstock.transforms import (
    AddSchemaEvents,
    AddTransactionMetadata,
    AssembleTransactions,
    Barriers,
    DeadLetters,
    DebeziumFormat,
    Deduplicate,
    FilterEvents,
    FlattenAfter,
    FormatEvents,
    FormatShardRecords,
    FormatTransactions,
    MaskColumns,
    RenameColumns,
    RouteEvents,
    SelectColumns,
    ShardByKey,
    ToChangeEvents,
    YdbFormat,
    hashed,
)
from penstock.transforms.element_transform import ElementTransform

PACKAGES = (transforms, publish, spanner, bigtable, files, staging)
EXAMPLES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (AddSchemaEvents, {"shards": 4}),
    (AddTransactionMetadata, {"format": DebeziumFormat("shop")}),
    (AssembleTransactions, {"if_incomplete": "emit", "grace_seconds": 2, "max_events": 9, "ordered": False}),
    (Barriers, {"shards": 4, "interval_seconds": 2, "per_table": True}),
    (DeadLetters, {"attempt": 2, "with_text": True, "step": "ToLines"}),
    (Deduplicate, {"horizon_seconds": 60}),
    (FilterEvents, {"tables": "a.*", "without_tables": "b", "ops": ["READ"], "without_tags": ["t"]}),
    (FlattenAfter, {"metadata": ["op"], "prefix": "x_", "deletes": "drop"}),
    (FormatEvents, {"format": DebeziumFormat("shop")}),
    (FormatShardRecords, {"format": YdbFormat("feed")}),
    (FormatTransactions, {"format": DebeziumFormat("shop")}),
    (MaskColumns, {"masks": {"Email": hashed(b"a secret that no one reads")}, "table": "Users"}),
    (RenameColumns, {"names": {"a": "b"}, "table": "Users"}),
    (RouteEvents, {"routes": {"Orders": "orders"}}),
    (SelectColumns, {"only": ["a"], "table": "Users"}),
    (SelectColumns, {"without": ["a"], "table": ["Users", "Orders"]}),
    (ShardByKey, {"shards": 4}),
    (ToChangeEvents, {"server": "s", "database": "d", "stream": "x", "table": "t"}),
)
QUESTIONS = {
    "order": r"order",
    "repeats": r"repeat|twice|again",
    "watermark": r"watermark",
    "state": r"state",
}


def public_transforms() -> Iterator[type[beam.PTransform]]:
    for package in PACKAGES:
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isclass(found) and issubclass(found, beam.PTransform):
                yield found


PUBLIC = tuple(dict.fromkeys(public_transforms()))


def parameters(transform: type) -> dict[str, inspect.Parameter]:
    if transform.__init__ is beam.PTransform.__init__:  # type: ignore[misc]
        return {}
    return dict(inspect.signature(transform).parameters)


def type_of(parameter: inspect.Parameter) -> str:
    """Return the type of a parameter as it is written, without the limits of an option."""
    return re.sub(r"^Annotated\[(.+?), Accepts\(.*", r"\1", str(parameter.annotation))


@pytest.mark.parametrize(("transform", "arguments"), EXAMPLES)
def test_display_data_shows_every_argument_under_its_name(transform: Any, arguments: dict[str, Any]) -> None:
    shown = transform(**arguments).display_data()
    assert shown.keys() == arguments.keys()
    assert "secret" not in str(shown)


def test_the_examples_have_every_transform_and_every_argument() -> None:
    shown = {(transform, name) for transform, arguments in EXAMPLES for name in arguments} | {
        (FilterEvents, "where"),
        (ShardByKey, "rule"),
    }  # functions, which have no text
    of_package = [transform for transform in PUBLIC if transform.__module__.startswith("penstock.transforms")]
    assert shown == {(transform, name) for transform in of_package for name in parameters(transform)}


@pytest.mark.parametrize("transform", PUBLIC, ids=lambda transform: transform.__name__)
def test_arguments_after_the_first_are_passed_by_name(transform: type) -> None:
    if transform is publish.ForgettingParDo:  # it has the arguments of Beam's ParDo
        return
    kinds = [each.kind for each in parameters(transform).values()]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds[1:])


def test_a_name_has_one_type_in_all_transforms() -> None:
    types: dict[str, set[str]] = {}
    for transform in PUBLIC:
        for name, each in parameters(transform).items():
            types.setdefault(name, set()).add(type_of(each))
    # `table`, `tables` and `without_tables` have other types in a source; `format` formats a record, a file or an
    # event; `fn` is a DoFn or, in a ParDo, also a function; each file format has its own kinds of `compression`.
    various = {"table", "tables", "without_tables", "format", "fn", "compression"}
    assert {name for name, found in types.items() if len(found) > 1} == various


@pytest.mark.parametrize("transform", PUBLIC, ids=lambda transform: transform.__name__)
def test_times_and_sizes_say_their_unit(transform: type) -> None:
    for name, each in parameters(transform).items():
        if type_of(each) == "float":
            assert name.endswith("_seconds"), name
        assert not re.search(r"(time|timeout|interval|delay|_ms|_s|size)$", name), name


@pytest.mark.parametrize(
    "transform",
    [each for each in PUBLIC if each.__module__.startswith("penstock.transforms")],
    ids=lambda transform: transform.__name__,
)
def test_the_docstring_answers_the_four_questions(transform: type) -> None:
    text = (inspect.getdoc(transform) or "").lower()
    if issubclass(transform, ElementTransform):
        text += (inspect.getdoc(ElementTransform) or "").lower()
    assert [question for question, words in QUESTIONS.items() if not re.search(words, text)] == []
