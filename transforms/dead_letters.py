"""`DeadLetters`: records of the elements that a transform with exception handling could not process."""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import msgspec
from apache_beam import coders
from apache_beam.metrics import Metrics

from penstock.coders import VersionedCoder
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Source, Version
from penstock.event.coder import decode_event, encode_event
from penstock.io.change_streams.coders import UndecodableRecordCoder
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.staging.metrics import DEAD_LETTERS, NAMESPACE
from penstock.io.staging.refused import RefusedEvent
from penstock.transforms.element_transform import ElementTransform

Failure = tuple[Any, tuple[type[BaseException], str, Sequence[str]]]
"""What Beam's `with_exception_handling` emits: the element, and its exception as (class, text, traceback)."""


class DeadLetter(msgspec.Struct, frozen=True):
    """An element that could not be processed.

    - `reason`: the class of the exception and the line of code that raised it. It has no text of the exception, which
      may contain values of the row, unless `DeadLetters(with_text=True)`.
    - `source`, `version`: the position of the event; None if the element is no event.
    - `element_type`: the qualified name of the element's class.
    - `data`: the original bytes: the encoded event (`penstock.event.coder`), a `bytes` element itself, or the bytes of
      Beam's coder of the class. They contain the values of the row.
    - `attempt`: how many times the element was processed, from 1.
    - `step`: the name of the step that could not process it, where it can enter the pipeline again; may be empty.
    """

    reason: str
    source: Source | None
    version: Version | None
    element_type: str
    data: bytes
    attempt: int = 1
    step: str = ""

    @property
    def element(self) -> Any:
        """The element as it was before the step that failed.

        Raises:
            ValueError: its class does not exist in this version.
        """
        # Only events have a version, so it tells the two forms apart without another field.
        if self.version is not None:
            return decode_event(self.data)
        if self.element_type == "bytes":
            return self.data
        return coders.registry.get_coder(_class_named(self.element_type)).decode(self.data)

    @property
    def event(self) -> ChangeEvent:
        """The event, to process it again.

        Raises:
            ValueError: the element was no event.
        """
        if self.version is None:
            raise ValueError(f"this dead letter is a {self.element_type}, not an event")
        return decode_event(self.data)

    def __repr__(self) -> str:  # no data: it is someone's
        return f"<dead letter of {self.element_type}, attempt {self.attempt}: {self.reason}>"


class DeadLetterCoder(VersionedCoder):
    """Beam's coder of `DeadLetter`: a version byte, then a msgpack map."""

    value_type = DeadLetter
    what = "a dead letter"

    def encode(self, value: DeadLetter) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(value)

    def decode(self, encoded: bytes) -> DeadLetter:
        self.check_version(encoded[0] if encoded else None)
        return _decode(memoryview(encoded)[1:])


coders.registry.register_coder(DeadLetter, DeadLetterCoder)
_decode = msgspec.msgpack.Decoder(DeadLetter).decode


class DeadLetters(ElementTransform):
    """Turns the failures of a transform into `DeadLetter`s, without values of rows in their reasons.

        events, failures = records | ToChangeEvents().with_exception_handling()
        failures | DeadLetters() | WriteToFiles(...)

    Input: the second output of any transform with Beam's `with_exception_handling`, the `UndecodableRecord`s of a
    source, or the `RefusedEvent`s of a sink. The reasons of the last two are kept, because they show no values.
    `attempt` and `step` are noted in the letters; a pipeline that processes dead letters again passes the next attempt,
    and each letter to its step. An event in a pair, such as (shard, event), is found. Errors of Penstock's transforms
    name tables and columns but show no values, so `with_text=True` is safe if the pipeline's own functions do the same.

    Order, repeats, watermark and state are as in all transforms over single elements: a letter keeps its timestamp.
    """

    def __init__(self, *, attempt: int = 1, with_text: bool = False, step: str = "") -> None:
        if attempt < 1:
            raise UsageError(f"DeadLetters needs an attempt of at least 1, not {attempt}")
        self._attempt, self._with_text, self._step = attempt, with_text, step
        super().__init__(_Letter(attempt, with_text, step), DeadLetter)

    def display_data(self) -> dict[str, Any]:
        return {"attempt": self._attempt, "with_text": self._with_text, "step": self._step}


def dead_letter(
    failure: Failure | UndecodableRecord | RefusedEvent, attempt: int = 1, with_text: bool = False
) -> DeadLetter:
    """Return the dead letter of one failure."""
    # The reasons of `UndecodableRecord` and `RefusedEvent` are written by our own code and show no values, so
    # they are kept whole.
    if isinstance(failure, UndecodableRecord):
        data = UndecodableRecordCoder().encode(failure)
        return DeadLetter(failure.reason, None, None, _name(UndecodableRecord), data, attempt)
    if isinstance(failure, RefusedEvent):
        event, reason = failure.event, f"{failure.target}: {failure.reason}"
        return DeadLetter(
            reason, event.source, event.version, _name(ChangeEvent), encode_event(event), attempt
        )
    element, (error, text, trace) = failure
    reason = _reason(error, text if with_text else "", trace)
    # A step may emit pairs such as (shard, event); the event inside has the position that a person needs to
    # find the row.
    found = _event_in(element)
    if found is not None:
        return DeadLetter(
            reason, found.source, found.version, _name(ChangeEvent), encode_event(found), attempt
        )
    # Beam's coder for the class, because a reader finds it again by the class name alone.
    data = element if isinstance(element, bytes) else coders.registry.get_coder(type(element)).encode(element)
    return DeadLetter(reason, None, None, _name(type(element)), data, attempt)


def letter_fields(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as values of JSON: `source` and `version` as objects, `data` as base64."""
    return {
        "reason": letter.reason,
        "attempt": letter.attempt,
        "step": letter.step,
        # `and` keeps None: an element that is no event has neither a source nor a version.
        "source": letter.source and _named(letter.source),
        "version": letter.version and _named(letter.version),
        "element_type": letter.element_type,
        "data": b64encode(letter.data).decode(),
    }


def letter_of(fields: Mapping[str, Any]) -> DeadLetter:
    """Return the letter of `letter_fields`.

    Raises:
        ValueError: not the fields of a letter.
    """
    try:
        source, version = fields["source"], fields["version"]
        return DeadLetter(
            str(fields["reason"]),
            source and Source(**source),
            version and Version(**version),
            str(fields["element_type"]),
            b64decode(fields["data"], validate=True),
            int(fields["attempt"]),
            str(fields.get("step", "")),
        )
    # The message of the original error would show parts of the letter, which holds values of the row.
    except (KeyError, TypeError, ValueError):
        raise ValueError("not a dead letter") from None


def _named(struct: Source | Version) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


class _Letter:
    def __init__(self, attempt: int, with_text: bool, step: str) -> None:
        self._attempt, self._with_text, self._step = attempt, with_text, step

    def __call__(self, failure: Failure | UndecodableRecord | RefusedEvent) -> tuple[DeadLetter]:
        Metrics.counter(NAMESPACE, DEAD_LETTERS).inc()
        letter = dead_letter(failure, self._attempt, self._with_text)
        return (msgspec.structs.replace(letter, step=self._step) if self._step else letter,)


# An entry of `traceback.format_exception`: '  File "/a/b.py", line 7, in f'. The folder says nothing about the cause.
_FRAME = re.compile(r'  File "(?:[^"]*[/\\])?([^"/\\]+)", line (\d+), in (\S+)')


def _reason(error: type[BaseException], text: str, trace: Sequence[str]) -> str:
    # The message and the lines of code in a traceback may show a value, so only places are taken. `match` looks at
    # the start of each entry: the entry of the message starts with the class.
    frames = [found.groups() for found in map(_FRAME.match, trace) if found]
    location = " at {}:{} in {}".format(*frames[-1]) if frames else ""
    return f"{_name(error)}{location}{text and f': {text}'}"


def _event_in(element: Any) -> ChangeEvent | None:
    if isinstance(element, ChangeEvent):
        return element
    # Only the first level is searched: our own steps emit flat pairs.
    parts = element if isinstance(element, tuple) else ()
    return next((part for part in parts if isinstance(part, ChangeEvent)), None)


def _class_named(name: str) -> type:
    """Return the class of a qualified name, such as ``penstock.io.spanner.record.DataChangeRecord``."""
    module, _, class_ = name.rpartition(".")
    # A letter may come from a pipeline with another version, or with classes of its user that are not installed
    # here.
    try:
        found = getattr(import_module(module), class_)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"there is no class {name} in this version of penstock") from None
    # A source registers the coder of its records in this module. Without it Beam would decode with a default coder.
    with contextlib.suppress(ModuleNotFoundError):
        import_module(f"{module.rpartition('.')[0]}.coder")
    return cast("type", found)


def _name(class_: type) -> str:
    return (
        class_.__qualname__
        if class_.__module__ == "builtins"
        else f"{class_.__module__}.{class_.__qualname__}"
    )
