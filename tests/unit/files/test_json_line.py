"""One line from the value that the format function returns."""

import pytest

from penstock.io.files.json_lines import json_line


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": 1, "b": [None, True, 1.5]}, b'{"a":1,"b":[null,true,1.5]}\n'),
        ({"n": 2**63 - 1}, b'{"n":9223372036854775807}\n'),
        ("already text", b"already text\n"),
        (b"already bytes", b"already bytes\n"),
        ({"s": "a\nb"}, b'{"s":"a\\nb"}\n'),
        ("é", "é\n".encode()),
    ],
)
def test_a_value_is_one_line_of_utf8(value, line):
    assert json_line(value) == line


@pytest.mark.parametrize("text", ["secret\nline", b"secret\r"])
def test_text_with_a_line_break_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="line break") as refusal:
        json_line(text)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "value", [{"secret": float("nan")}, {"secret": object()}, {"secret": {1, 2}}, {"s": "\ud800"}]
)
def test_a_value_that_json_cannot_express_is_refused_and_not_shown(value):
    with pytest.raises(ValueError, match="not JSON") as refusal:
        json_line(value)
    assert "secret" not in str(refusal.value)
    assert "d800" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


def test_text_that_is_not_unicode_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="lone surrogate") as refusal:
        json_line("secret \ud800")
    assert "secret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_a_cycle_is_refused():
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="not JSON"):
        json_line(cycle)
