"""`Preview`: a pipeline's first changes as its sink would write them, without the sink.

    preview = Preview(limit=10)
    build(pipeline, …, preview=preview)      # as for a run; the runner needs a temporary checkpoint
    preview.take()                           # while the pipeline runs: the texts that have arrived since the last call

A preview uses the pipeline's source, filters, masks and format. In place of each sink there is a step that makes
texts, and a step in the driver that keeps them. The source leaves no trace (`for_preview`), and there are no logs:
nothing is written anywhere but into the checkpoint.

Order: by event time, and the changes of a partition in their order. Repeats: none. State: at most `limit` texts of each
bundle.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import apache_beam as beam
import msgspec

from penstock.batches import SingleElements
from penstock.event import ChangeEvent
from penstock.io.staging.preview import Preview as WhatIsWritten
from penstock.io.staging.preview import Written
from penstock.publish import PublishOnDriver
from penstock.transforms.formats.formatted import Encoding, Format, key_encoding, value_encoding
from penstock.transforms.formats.lines import Line, encoded_as_json

CHANGE, LETTER = "change", "letter"
"""What a text is: something that the sink would write, or the reason why a change would be a dead letter."""


class Shown(msgspec.Struct, frozen=True, order=True):
    """A text on its way to the driver. `bundle` and `index` are its place among the texts that came with it."""

    timestamp_us: int
    bundle: str
    index: int
    kind: str
    text: str


class Preview:
    """The texts of one preview; `limit` is how many changes are wanted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._id = uuid4().hex
        self._lock = threading.Lock()
        self._arrived: list[Shown] = []
        self._known: set[tuple[str, int]] = set()
        # The function that the driver calls is a copy of the pipeline's, so it finds this value by its id.
        _PREVIEWS[self._id] = self

    def take(self) -> list[Shown]:
        """Return what has arrived since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived

    def add(self, texts: Iterable[Shown]) -> None:
        """Add the texts of an epoch in the order of their event times. Texts that come again are left out."""
        with self._lock:
            new = [each for each in texts if (each.bundle, each.index) not in self._known]
            self._known |= {(each.bundle, each.index) for each in new}
            self._arrived += sorted(new)

    def write(self, sink: Any, format: Format | None, *, refuses: bool) -> ShowWritten:
        """Return the step in place of a sink of change events. `format`: the format of its records, if they have one.

        `refuses`: events that the sink cannot express are shown as dead letters, and do not fail the pipeline.
        """
        return ShowWritten(self, partial(_events_as_json, sink.preview, format), refuses=refuses)

    def lines(self) -> ShowWritten:
        """Return the step in place of a sink of `Line`s."""
        return ShowWritten(self, _line)

    def letters(self, describe: Callable[[Any], str]) -> ShowWritten:
        """Return the step in place of the sink of dead letters."""
        return ShowWritten(self, partial(_described, describe), kind=LETTER)


class ShowWritten(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Sends the texts of its input to the driver; emits nothing that anybody needs."""

    def __init__(
        self,
        preview: Preview,
        show: Callable[[Any], list[str]],
        *,
        refuses: bool = False,
        kind: str = CHANGE,
    ) -> None:
        super().__init__()
        self._preview, self._show, self._refuses, self._kind = preview, show, refuses, kind

    def expand(self, elements: Any) -> Any:
        """Return the texts, after they have arrived."""
        show = _ShowFn(self._show, self._preview.limit, self._kind, refuses=self._refuses)
        shown = elements | SingleElements() | "Show" >> beam.ParDo(show).with_output_types(bytes)
        return shown | "Collect" >> PublishOnDriver(partial(_collect, self._preview._id))


class _ShowFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """Makes texts, at most `limit` in a bundle: no bundle needs to tell more than all of the preview."""

    def __init__(self, show: Callable[[Any], list[str]], limit: int, kind: str, *, refuses: bool) -> None:
        self._show, self._limit, self._kind, self._refuses = show, limit, kind, refuses
        self._bundle, self._count = "", 0

    def start_bundle(self) -> None:
        self._bundle, self._count = uuid4().hex, 0

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Iterable[bytes]:
        if self._count >= self._limit:
            return
        kind = self._kind
        try:
            texts = self._show(element)
        except ValueError as error:
            if not self._refuses:
                raise
            kind, texts = LETTER, [str(error)]
        for text in texts:
            self._count += 1
            yield _encode(Shown(timestamp.micros, self._bundle, self._count, kind, text))


_PREVIEWS: dict[str, Preview] = {}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Shown).decode
_json = msgspec.json.Encoder(decimal_format="string").encode


def _collect(preview: str, texts: Sequence[bytes]) -> None:
    """Give the texts of an epoch to their preview; runs in the driver."""
    _PREVIEWS[preview].add(map(_decode, texts))


def _line(line: Line) -> list[str]:
    return [line.line if isinstance(line.line, str) else line.line.decode()]


def _described(describe: Callable[[Any], str], letter: Any) -> list[str]:
    return [describe(letter)]


def _events_as_json(written: WhatIsWritten, format: Format | None, event: ChangeEvent) -> list[str]:
    encodings: dict[str, Encoding] = {}
    if format is not None:
        value = value_encoding(format)
        encodings = {"key": key_encoding(format), "value": value, "data": value}
    return [as_json(each, encodings) for each in written(event)]


def as_json(written: Written, encodings: dict[str, Encoding]) -> str:
    """Return what a sink writes as one line of JSON. `encodings`: encoding of the bytes by name, default text."""
    plain = {
        name: encoded_as_json(value, encodings[name]) if name in encodings else _plain(value)
        for name, value in written.items()
    }
    return _json(plain).decode()


def _plain(value: Any) -> Any:
    """Return a value with bytes as text or base64, and with names for the numbers that JSON does not have."""
    if isinstance(value, bytes):
        return encoded_as_json(value, "text")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
