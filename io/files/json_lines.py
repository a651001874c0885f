"""JSON Lines: one value as one line, and lines as the content of a file. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.io.staging.blocks import RecordBlock

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_line(value: Any) -> bytes:
    """Return one line with its newline: text and bytes as they are, any other value as compact JSON in UTF-8.

    Raises:
        ValueError: the text contains a line break, or JSON cannot express the value. The message does not show it.
    """
    if isinstance(value, bytes | str):
        line = value if isinstance(value, bytes) else _utf8(value)
        if b"\n" in line or b"\r" in line:
            raise ValueError(
                "the format function returned text with a line break; return one line, or an object to encode."
            )
        return line + b"\n"
    try:
        return _utf8(_encode(value)) + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the format function returned a {type(value).__name__} that is not JSON ({type(error).__name__}): "
            "return only dicts, lists, text, finite numbers, booleans and None."
        ) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "the format function returned text with a lone surrogate, which is not JSON text: decode it properly."
        ) from None


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Files whose records are lines; see `penstock.io.staging.FileFormat`."""

    suffix: ClassVar[str] = ".jsonl"

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the lines: records carry their newline, so joining them is all there is to do."""
        return (block.payload for block in blocks)
