"""The channels of signals other than the log: a polled table, a file, a folder, a Kafka topic.

A channel has a position, a JSON value that is a part of the checkpoint, so that each signal is applied once. A
malformed signal is logged and then ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.errors import SetupError
from penstock.folders import check_creatable
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.signals import (
    Signal,
    SignalError,
    parse_signal,
    parse_signal_line,
)

_LOGGER = logging.getLogger(__name__)
_KAFKA_SECONDS = 0.2
_MAX_MESSAGES = 100


class Polled(NamedTuple):
    """New signals of a channel, and its position after them.

    `joined`, `left`: tables whose rows are to be read, and are not read any more; see `SnapshotProgress.followed`.
    """

    channel: str
    signals: Sequence[Signal]
    position: Any
    joined: Mapping[str, str] = {}
    left: Sequence[str] = ()


class Channel(Protocol):
    """A source of signals. One thread uses it."""

    name: str

    def poll(self, position: Any) -> Polled | None:
        """Return the signals after a position (None: at the first call), or None if there are none."""

    def close(self) -> None: ...


def parsed(parses: Iterable[Callable[[], Signal]]) -> list[Signal]:
    """Return the signals that can be parsed; report the others."""
    signals = []
    for parse in parses:
        try:
            signals.append(parse())
        except SignalError as error:
            _LOGGER.warning("a signal was ignored: %s", error)
    return signals


class FileChannel:
    """A file of JSON lines. Its position is the number of bytes that were read; a shorter file is read from its
    start.
    """

    def __init__(self, path: str) -> None:
        self.name, self._path = "file", Path(path)

    def poll(self, position: Any) -> Polled | None:
        start = position or 0
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            if file.seek(0, 2) < start:
                start = 0
            file.seek(start)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may still be written
        if not whole:
            return None
        lines = [line for line in whole.decode(errors="replace").splitlines() if line.strip()]
        signals = parsed(
            # By its place: after a crash, which begins at the same position, a signal has the same id.
            partial(parse_signal_line, line, f"file-{start}-{number}")
            for number, line in enumerate(lines)
        )
        return Polled(self.name, signals, start + len(whole))

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""


class FolderChannel:
    """A folder of JSON files, one signal each. Its position: the names of the files that were read and still exist.

    Raises:
        SetupError: the folder does not exist and cannot be made.
    """

    def __init__(self, path: str) -> None:
        self.name, self._path = "folder", Path(path)
        # `penstock snapshot FOLDER` refuses a folder that does not exist, because a misspelt name would go unnoticed.
        # So the folder exists from the moment that a job reads it.
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"signal_folder {path} cannot be made: {error.strerror}. Make it, or name another folder"
            ) from error

    def poll(self, position: Any) -> Polled | None:
        names = sorted(path.name for path in self._path.glob("*.json")) if self._path.is_dir() else []
        new = [name for name in names if name not in (position or ())]
        if not new:
            return None
        signals = parsed(partial(_signal_of_file, self._path, name) for name in new)
        return Polled(self.name, signals, names)

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


def check_folder(path: str) -> None:
    """Check that the folder of signals can be made or exists, and make nothing.

    Raises:
        SetupError: it cannot.
    """
    try:
        check_creatable(path)
    except OSError as error:
        raise SetupError(f"signal_folder {path} cannot be used: {error.strerror}") from error


class TableChannel:
    """A signal table that is polled. Its position is the ids of the rows that were read and still
    exist.
    """

    def __init__(self, rows: Callable[[], Sequence[Sequence[Any]]], close: Callable[[], None]) -> None:
        """`rows` asks for all signals: texts of id, type and data, ordered by id."""
        self.name, self._rows, self._close = "table", rows, close

    def poll(self, position: Any) -> Polled | None:
        rows = self._rows()
        new = [row for row in rows if row[0] not in (position or ())]
        if not new:
            return None
        signals = parsed(partial(parse_signal, *row) for row in new)
        return Polled(self.name, signals, [id_ for id_, _, _ in rows])

    def close(self) -> None:
        self._close()


class KafkaChannel:
    """A Kafka topic. Its position is the next offset of each partition; the first read begins at the end of the topic.

    A message's key, if it has one, must be the key that is given. Its value is a signal in JSON.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self.name, self._options = "kafka", dict(options)
        self._topic, self._key = self._options.pop("topic"), self._options.pop("key", "")
        self._consumer: Any = None

    def poll(self, position: Any) -> Polled | None:
        from confluent_kafka import KafkaException

        try:
            if self._consumer is None:
                # No signals, but the offsets: otherwise a restart would begin at a later end of the topic.
                return self._open(dict(position or ()))
            messages = self._consumer.consume(_MAX_MESSAGES, _KAFKA_SECONDS)
        except KafkaException as error:
            _LOGGER.warning(
                "signals of the Kafka topic %s cannot be read: %s", self._topic, error.args[0].str()
            )
            return None
        taken = [message for message in messages if message.error() is None]
        if not taken:
            return None
        offsets = dict(position or ()) | {message.partition(): message.offset() + 1 for message in taken}
        signals = parsed(
            partial(self._signal, message)
            for message in taken
            if not self._key or (message.key() or b"").decode(errors="replace") == self._key
        )
        return Polled(self.name, signals, sorted(offsets.items()))

    def _open(self, position: dict[int, int]) -> Polled | None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "group.id": "penstock-signals",
                # The checkpoint has the offsets. Offsets of the group would be ahead of it after a crash.
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **self._options,
            },
            # librdkafka writes to stderr unless it gets a logger.
            logger=_LOGGER,
        )
        topic = consumer.list_topics(self._topic, timeout=5).topics[self._topic]
        if not topic.partitions:
            consumer.close()
            _LOGGER.warning("the Kafka topic %s of signals cannot be read: %s", self._topic, topic.error)
            return None
        offsets = {}
        for number in topic.partitions:
            partition = TopicPartition(self._topic, number)
            # A partition that was added after the first read has only new messages, so it is read from its start.
            default = 0 if position else consumer.get_watermark_offsets(partition, timeout=5)[1]
            offsets[number] = position.get(number, default)
        consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in offsets.items()])
        self._consumer = consumer
        return Polled(self.name, (), sorted(offsets.items()))

    def _signal(self, message: Any) -> Signal:
        id_ = f"kafka-{message.partition()}-{message.offset()}"
        return parse_signal_line((message.value() or b"").decode(errors="replace"), id_)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def channels_of(options: SnapshotOptions) -> list[Channel]:
    """Return the channels that every source has."""
    found: list[Channel] = []
    if options.signal_file:
        found.append(FileChannel(options.signal_file))
    if options.signal_folder:
        found.append(FolderChannel(options.signal_folder))
    if options.signal_kafka:
        found.append(KafkaChannel(dict(options.signal_kafka)))
    return found


def _signal_of_file(folder: Path, name: str) -> Signal:
    return parse_signal_line((folder / name).read_text(), name.removesuffix(".json"))


def signal_of_row(row: Sequence[Any]) -> Signal | None:
    """Return the signal of an inserted row of the signal table: id, type, data."""
    values = [value if isinstance(value, str) else None for value in row[:3]]
    found = parsed([lambda: parse_signal(values[0] or "", values[1] or "", values[2])])
    return found[0] if found else None
