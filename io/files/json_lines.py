"""JSON Lines: one value as one line, and lines as the content of a file. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from penstock.errors import UsageError
from penstock.io.staging.blocks import RecordBlock

LineCompression = Literal["none", "gzip"]

# `allow_nan=False`: NaN is no JSON, and a reader would fail at that line.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def json_line(value: Any) -> bytes:
    """Return one line with its newline: text and bytes as they are, any other value as compact JSON in UTF-8.

    Raises:
        ValueError: the text contains a line break, or JSON cannot express the value. The message does not show it.
    """
    if isinstance(value, bytes | str):
        line = value if isinstance(value, bytes) else _utf8(value)
        # A line break would make two records of one, without an error.
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

    compression: LineCompression = "none"

    def __post_init__(self) -> None:
        if self.compression not in get_args(LineCompression):
            allowed = ", ".join(get_args(LineCompression))
            raise UsageError(f"compression of JSON Lines is one of {allowed}, got {self.compression!r}.")

    @property
    def suffix(self) -> str:
        """The end of published names."""
        return ".jsonl" if self.compression == "none" else ".jsonl.gz"

    def content(self, blocks: Iterable[RecordBlock]) -> Iterator[bytes]:
        """Yield the lines. Records carry their newline, so they only need to be joined."""
        lines = (block.payload for block in blocks)
        return lines if self.compression == "none" else _gzipped(lines)


def _gzipped(parts: Iterable[bytes]) -> Iterator[bytes]:
    # 16: with the header and the end of a gzip file (zlib.compressobj). It has no time of day, so equal lines give
    # equal files.
    gzip = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for part in parts:
        yield gzip.compress(part)
    yield gzip.flush()
