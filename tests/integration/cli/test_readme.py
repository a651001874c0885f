"""The README's example, unchanged except for its folders."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]

README = Path(__file__).resolve().parent.parent.parent.parent / "README.md"


def example() -> str:
    """Return the one Python block of the README."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return str(code)


@pytest.mark.parametrize(
    "emulator",
    [pytest.param("google", marks=[pytest.mark.emulator, pytest.mark.campaign]), "simulated"],
    indirect=True,
    scope="module",
)
def test_the_example_publishes_deleted_rows(
    emulator: Any, start: Any, shop: Any, published: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    program = tmp_path / "example.py"
    program.write_text(example().replace("/data/", f"{tmp_path}/"))
    running = start(sys.executable, str(program))
    numbers = count(5_000_000)

    def deleted_rows_are_published() -> bool:
        number = next(numbers)
        shop.order(range(number, number + 1))
        shop.cancel(range(number, number + 1))
        return bool(list((tmp_path / "deleted").glob("Orders/*/*.jsonl")))

    running.until(deleted_rows_are_published)
    rows = published(tmp_path / "deleted")
    assert rows
    assert all(set(row) == {"OrderId"} for row in rows)
