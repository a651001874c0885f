"""The pictures of the README are what their script draws, and the moving one shows a run that held its promise."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.pictures import terminal
from tools.pictures.__main__ import CAST, FOLDER, pictures

README = (Path(__file__).resolve().parents[3] / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(pictures()))
def test_a_picture_is_what_its_script_draws_and_the_readme_shows_it(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == pictures()[name], "run python -m tools.pictures"
    assert f"](docs/pictures/{name})" in README


@pytest.mark.parametrize("name", sorted(pictures()))
def test_a_picture_is_a_file_of_its_own_with_a_title_and_colours_for_dark_pages(name: str) -> None:
    text = pictures()[name]
    picture = ElementTree.fromstring(text)
    assert picture.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"<script|https?://(?!www\.w3\.org/2000/svg)|url\((?!#)", text) == []


def test_the_recording_is_a_whole_run_that_ends_with_its_proof() -> None:
    lines = terminal.lines_of(CAST.read_text("utf-8"))
    texts = [line.text.strip() for line in lines]
    assert "lost 0, doubled 0, out of order 0" in texts
    assert any("kill -9 after" in text for text in texts)
    assert texts[-4] == "Next:"
    assert max(len(line.text) for line in lines) <= terminal.COLUMNS


def test_lines_appear_at_the_times_of_the_recording() -> None:
    cast = '{"version": 2}\n[1.5, "o", "one\\r\\ntw"]\n[2.0, "o", "o\\r\\n"]\n'
    assert terminal.lines_of(cast)[1:] == [terminal.Line(1.5, "one"), terminal.Line(2.0, "two")]
