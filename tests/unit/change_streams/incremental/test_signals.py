"""Signals in Debezium's layout."""

from __future__ import annotations

import pytest

from penstock.io.change_streams.incremental.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    SignalError,
    StopSnapshot,
    matches,
    parse_signal,
    parse_signal_line,
)


def test_an_execute_signal_of_debezium_is_read_with_all_its_fields():
    data = """{"data-collections": ["public.orders", "sales\\\\..*"], "type": "INCREMENTAL", "surrogate-key": "a, b",
        "additional-conditions": [{"data-collection": "public.orders", "filter": "total > 10"}], "chunk-size": 7}"""
    assert parse_signal("7", "execute-snapshot", data) == ExecuteSnapshot(
        "7", ("public.orders", r"sales\..*"), (("public.orders", "total > 10"),), ("a", "b"), 7
    )


def test_stop_pause_and_resume_signals_are_parsed():
    assert parse_signal("1", "stop-snapshot", None) == StopSnapshot("1")
    assert parse_signal("1", "stop-snapshot", '{"data-collections": ["a.b"]}') == StopSnapshot("1", ("a.b",))
    assert parse_signal("1", "pause-snapshot", "") == PauseSnapshot("1")
    assert parse_signal_line('{"type": "resume-snapshot"}', "line 3") == ResumeSnapshot("line 3")


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        ("execute", "{}", "execute-snapshot, stop-snapshot"),
        ("execute-snapshot", "{}", "needs the tables"),
        ("execute-snapshot", "[1]", "JSON object"),
        ("execute-snapshot", "{", "JSON object"),
        ("execute-snapshot", '{"data-collections": "public.a"}', "list of names"),
        ("execute-snapshot", '{"data-collections": ["("]}', "regular expression"),
        ("execute-snapshot", '{"data-collections": ["a"], "type": "blocking"}', "incremental"),
        ("execute-snapshot", '{"data-collections": ["a"], "chunk-size": -1}', "chunk-size"),
        ("execute-snapshot", '{"data-collections": ["a"], "surrogate-key": 3}', "surrogate-key"),
        ("execute-snapshot", '{"data-collections": ["a"], "additional-conditions": [{}]}', "filter"),
    ],
)
def test_a_malformed_signal_is_refused_with_the_form_that_is_expected(type_, data, said):
    with pytest.raises(SignalError, match=said):
        parse_signal("1", type_, data)


def test_a_pattern_matches_the_whole_name():
    assert matches(["public.*"], "public.orders")
    assert not matches(["public.order"], "public.orders")
