"""The form in which progress and messages are written."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from penstock.launch.reporter import Reporter, Style, choose_style, send_logs_to
from penstock.telemetry.status import PipelineStatus


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def status(at: float, mods: int) -> PipelineStatus:
    return PipelineStatus(at, 1, at, at, None, None, {"changes": mods})


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, whose settings are restored after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def test_auto_is_live_on_a_terminal_and_json_elsewhere() -> None:
    assert choose_style("auto", is_terminal=True) is Style.LIVE
    assert choose_style("auto", is_terminal=False) is Style.JSON


def test_a_named_style_is_used_on_any_stream() -> None:
    assert choose_style("line", is_terminal=True) is Style.LINE


def test_a_progress_line_is_due_again_after_the_interval_of_its_style() -> None:
    now = [0.0]
    reporter = Reporter(Style.LINE, io.StringIO(), clock=lambda: now[0])
    assert reporter.due()
    reporter.show(status(0.0, 0))
    now[0] = 1.9
    assert not reporter.due()
    now[0] = 2.0
    assert reporter.due()


def test_the_style_none_is_never_due() -> None:
    assert not Reporter(Style.NONE, io.StringIO()).due()


def test_the_rate_covers_the_last_five_seconds_and_not_the_last_status() -> None:
    stream = io.StringIO()
    reporter = Reporter(Style.JSON, stream)
    for at, mods in [(0.0, 0), (1.0, 1000), (2.0, 1000), (4.0, 1000), (6.0, 2000), (11.0, 2000)]:
        reporter.show(status(at, mods))
    rates = [json.loads(line)["changes_per_second"] for line in stream.getvalue().splitlines()]
    assert rates == [0.0, 1000.0, 500.0, 250.0, 200.0, 0.0]


def test_programs_get_every_message_as_an_event() -> None:
    stream = io.StringIO()
    Reporter(Style.JSON, stream).message("resume", "to continue, run:\n  x", command="x")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["command"]) == ("resume", "x")


def test_people_get_every_message_as_text() -> None:
    stream = io.StringIO()
    Reporter(Style.LINE, stream).message("resume", "to continue, run:\n  x", command="x")
    assert stream.getvalue() == "to continue, run:\n  x\n"


def test_the_live_line_shows_progress_and_keeps_messages_above_it() -> None:
    stream = Terminal()
    with Reporter(Style.LIVE, stream) as reporter:
        reporter.show(status(0.0, 12))
        reporter.message("log", "a [bracket] is no markup")
    assert "12 in all" in stream.getvalue()
    assert "a [bracket] is no markup" in stream.getvalue()


def test_control_characters_are_shown_as_text_in_every_style_for_people() -> None:
    for style in (Style.LINE, Style.LIVE):
        stream = Terminal()
        with Reporter(style, stream) as reporter:
            reporter.message("log", "table \x1b]0;owned\x07\r \u202ename")
        assert "\\x1b]0;owned\\x07\\x0d \\u202ename" in stream.getvalue()


def test_the_last_message_before_an_abort_shows_the_cursor_again() -> None:
    stream = Terminal()
    reporter = Reporter(Style.LIVE, stream)
    with reporter:
        reporter.message_from_signal_handler("aborted", "aborted")
        assert stream.getvalue().endswith("\x1b[?25h\naborted\n")


def test_the_last_message_before_an_abort_is_json_where_all_others_are() -> None:
    stream = io.StringIO()
    Reporter(Style.JSON, stream).message_from_signal_handler("aborted", "aborted", command="x")
    assert json.loads(stream.getvalue())["command"] == "x"


def test_penstock_logs_from_info_and_other_packages_from_error(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    send_logs_to(Reporter(Style.LINE, stream))
    logging.getLogger("penstock.io").info("ours")
    logging.getLogger("apache_beam.io").warning("theirs, not shown")
    logging.getLogger("py4j").error("theirs")
    assert stream.getvalue().splitlines() == ["info: ours", "error: theirs"]
