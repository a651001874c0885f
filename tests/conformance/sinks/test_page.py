"""docs/new-sink.md shows code of the toy sink, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "new-sink.md").read_text()
(TRIAL,) = re.findall(r"## Try it\n.*?```python\n(.*?)```", PAGE, re.DOTALL)


def test_each_block_of_code_is_a_part_of_the_toy_sink() -> None:
    toy = (ROOT / "tests" / "conformance" / "toy_sink.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    parts = [block for block in blocks if block != TRIAL]
    assert len(parts) == 5
    assert [part for part in parts if part not in toy] == []


def test_the_trial_of_the_page_sends_a_delivery_once() -> None:
    exec(compile(TRIAL, "docs/new-sink.md", "exec"), {})


def test_each_promise_names_a_conformance_test() -> None:
    tests = (ROOT / "tests" / "conformance" / "sinks" / "test_sinks.py").read_text()
    named = re.findall(r"`(test_\w+)` \|", PAGE)
    assert sorted(named) == sorted(re.findall(r"^def (test_\w+)\(", tests, re.MULTILINE))


def test_the_toy_sink_is_as_short_as_the_page_says() -> None:
    toy = (ROOT / "tests" / "conformance" / "toy_sink.py").read_text()
    assert len(toy.splitlines()) <= 170


def test_files_that_the_page_names_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    links += ["../" + name for name in re.findall(r"`((?:tests|pipelines|io)/[\w/]+\.py)`", PAGE)]
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
