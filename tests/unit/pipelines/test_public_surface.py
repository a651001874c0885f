"""Names, defaults and kinds of all that users write stay as they were recorded, except for what is listed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.public_surface import surface

RECORDED = Path(__file__).parents[2] / "golden/surface/surface.txt"

UNIFIED: Mapping[str, Callable[[str], str]] = {}
"""What has one name since it was recorded: its old name, and a function from an old line to the new one."""


def expected() -> set[str]:
    lines = set()
    for line in RECORDED.read_text("utf-8").splitlines():
        for old, new in UNIFIED.items():
            if re.search(rf"\b{old}\b", line):
                line = new(line)
        lines.add(line)
    return lines


def test_what_users_write_is_what_was_recorded() -> None:
    now, before = set(surface()), expected()
    assert sorted(before - now) == [], "gone: job files and programs of users have these"
    assert sorted(now - before) == [], "new: add them with `python tools/public_surface.py`"
