"""Output folders as any program reads them: only visible files, in the order of their names as text, then of lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"(?P<shard>\d+-of-\d+)_.+\.jsonl")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its bucket (table folder, hour folder, shard), its file and number, and its parsed content."""

    table: str
    hour: str
    shard: str
    place: str
    content: dict[str, Any]


def read_lines(*outputs: Path) -> Iterator[Line]:
    """Yield the lines of several folders as if they were one folder: by table, hour, name and line.

    If a consumer has taken files away, also pass the folder where they are now.

    Raises:
        ValueError: the name of a file does not follow the layout, or a line is incomplete or not a JSON object.
    """
    files = [(path.relative_to(output), path) for output in outputs for path in visible_files(output)]
    for relative, path in sorted(files, key=lambda each: each[0].parts):
        table, hour, name = relative.parts
        shard = _NAME.fullmatch(name)
        if shard is None:
            raise ValueError(f"{path} is not called <shard>-of-<shards>_….jsonl")
        yield from _lines_of(path, table, hour, shard["shard"])


def count_lines(output: Path) -> int:
    """Return the number of lines, without parsing them."""
    return sum(path.read_bytes().count(b"\n") for path in visible_files(output))


def visible_files(output: Path) -> list[Path]:
    """Return all ``<output>/<table>/<hour>/<file>``, without paths that have a part beginning with a dot."""
    found = [path for path in output.glob("*/*/*") if path.is_file()]
    return [
        path for path in found if not any(part.startswith(".") for part in path.relative_to(output).parts)
    ]


def _lines_of(path: Path, table: str, hour: str, shard: str) -> Iterator[Line]:
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        raise ValueError(f"{path} ends in the middle of a line")
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        place = f"{path.name}:{number}"
        parsed = json.loads(line)
        if not isinstance(parsed, dict):
            raise ValueError(f"{table}/{hour}/{place} is not a JSON object")
        yield Line(table, hour, shard, place, parsed)
