"""Every sink of the templates can be made with its examples, pickled, and copied with an error output."""

from __future__ import annotations

import pickle

import pytest

from penstock.options import EMPTY
from penstock.pipelines.sinks import SINKS, SinkKind
from tests.unit.pipelines.examples import made_with_examples

KINDS = pytest.mark.parametrize("kind", SINKS.values(), ids=SINKS)


@KINDS
def test_a_sink_can_be_made_with_its_examples_and_travels_to_the_workers(kind: SinkKind) -> None:
    sink = made_with_examples(kind)
    sent = pickle.loads(pickle.dumps(sink))
    assert sent.label == sink.label
    assert sent.display_data() == sink.display_data() != {}
    for name, each in kind.arguments().items():
        assert getattr(sent, name) == getattr(sink, name)
        assert each.accepts.example is not None or each.default is not EMPTY, name


@KINDS
def test_a_copy_with_an_error_output_keeps_the_options(kind: SinkKind) -> None:
    if kind.takes == "lines":  # lines are made before the sink, and it takes each of them
        return
    sink = made_with_examples(kind)
    copied = sink.with_exception_handling(max_dead_letters=3)
    assert copied is not sink
    assert copied.display_data() == sink.display_data()
    assert all(getattr(copied, name) == getattr(sink, name) for name in kind.arguments())


@KINDS
def test_none_is_no_entry_of_a_mapping(kind: SinkKind) -> None:
    mappings = {name: None for name, each in kind.arguments().items() if each.default == {}}
    assert made_with_examples(kind, **mappings).display_data()
