"""Any legal chunking of a record decodes to the same record, and any damaged chunking is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud.bigtable_v2.types import bigtable as service
from google.cloud.bigtable_v2.types import data
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.errors import DecodeError
from penstock.io.bigtable.decode import Decoder
from penstock.io.bigtable.record import DamagedMutation
from penstock.io.bigtable.wire import whole_cells

Response = service.ReadChangeStreamResponse.pb()
Chunk = service.ReadChangeStreamResponse.MutationChunk.pb()
Mutation = data.Mutation.pb()
raw = st.binary(max_size=6)


@st.composite
def mutations(draw: Any) -> Any:
    mutation = Mutation()
    kind = draw(st.sampled_from(("set", "set", "set", "column", "family", "add", "merge", "unknown")))
    if kind == "set":
        cell = mutation.set_cell
        cell.family_name, cell.column_qualifier = draw(st.sampled_from("fg")), draw(raw)
        cell.timestamp_micros, cell.value = draw(st.integers(0, 9)), draw(st.binary(max_size=12))
    elif kind == "column":
        delete = mutation.delete_from_column
        delete.family_name, delete.column_qualifier = "f", draw(raw)
        delete.time_range.end_timestamp_micros = draw(st.integers(0, 9))
    elif kind == "family":
        mutation.delete_from_family.family_name = draw(st.sampled_from("fg"))
    elif kind == "unknown":
        mutation.MergeFromString(b"\xca\x3e\x01x")  # field 1001, of a service newer than this client
    else:
        cell = mutation.add_to_cell if kind == "add" else mutation.merge_to_cell
        cell.family_name, cell.column_qualifier.raw_value = "f", draw(raw)
        cell.timestamp.raw_timestamp_micros = draw(st.integers(0, 9))
        cell.input.int_value = draw(st.integers(-9, 9))
    return mutation


records = st.lists(mutations(), min_size=1, max_size=6)


def head(message: Any) -> Any:
    change = message.data_change
    change.type_, change.source_cluster_id, change.row_key = 1, "c", b"row"
    change.commit_timestamp.seconds = 7
    return change


def finished(message: Any) -> None:
    change = message.data_change
    change.done, change.token = True, "token"
    change.estimated_low_watermark.seconds = 6


def whole(record: list[Any]) -> list[Any]:
    """Return the record in one message."""
    message = Response()
    change = head(message)
    for mutation in record:
        change.chunks.add().mutation.CopyFrom(mutation)
    finished(message)
    return [message]


def cut_value(draw: Any, mutation: Any) -> list[Any]:
    """Return the chunks of a mutation: one, or several for a value."""
    value = mutation.set_cell.value
    if mutation.WhichOneof("mutation") != "set_cell" or not value or not draw(st.booleans()):
        chunk = Chunk()
        chunk.mutation.CopyFrom(mutation)
        return [chunk]
    cuts = sorted(draw(st.sets(st.integers(1, len(value) - 1), max_size=3))) if len(value) > 1 else []
    chunks = []
    for start, end in zip([0, *cuts], [*cuts, len(value)], strict=True):
        chunk = Chunk()
        cell = chunk.mutation.set_cell
        if start == 0:
            chunk.mutation.CopyFrom(mutation)
        cell.value = value[start:end]
        info = chunk.chunk_info
        info.chunked_value_size, info.chunked_value_offset = len(value), start
        info.last_chunk = end == len(value)
        chunks.append(chunk)
    return chunks


def cut(draw: Any, record: list[Any]) -> list[Any]:
    """Return the record in any number of messages, chunked as the service may chunk it."""
    messages = [Response()]
    head(messages[0])
    for mutation in record:
        for chunk in cut_value(draw, mutation):
            full = messages[-1].data_change.chunks
            if full and (chunk.chunk_info.chunked_value_offset or draw(st.booleans())):
                messages.append(_continuation())
            messages[-1].data_change.chunks.append(chunk)
    if draw(st.booleans()):
        messages.append(_continuation())
    finished(messages[-1])
    return messages


def _continuation() -> Any:
    message = Response()
    message.data_change.type_ = 3
    return message


def received(message: Any) -> Any:
    """Return the message as the client parses it."""
    data = message.SerializeToString()
    return whole_cells(data) or Response.FromString(data)


def decoded(messages: list[Any], parsed: Callable[[Any], Any] = received) -> list[Any]:
    decoder = Decoder()
    records = [decoder.feed(parsed(message)) for message in messages]
    decoder.finish()
    return [record for record in records if record is not None]


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_any_legal_chunking_decodes_to_the_same_records(all_records: list[list[Any]], source: Any) -> None:
    expected = [record for each in all_records for record in decoded(whole(each))]
    pieces = [m for each in all_records for m in cut(source.draw, each)]
    assert decoded(pieces) == expected
    assert decoded(pieces, lambda message: message) == expected
    assert len(expected) == len(all_records)


Damage = Callable[[Any, list[Any]], bool]
"""Changes the messages; False: they have nothing that it could damage."""


def _parts(messages: list[Any]) -> list[Any]:
    return [chunk for m in messages for chunk in m.data_change.chunks if chunk.chunk_info.chunked_value_size]


def wrong_size(draw: Any, messages: list[Any]) -> bool:
    parts = _parts(messages)
    if parts:
        draw(st.sampled_from(parts)).chunk_info.chunked_value_size += draw(st.sampled_from((1, 1000)))
    return bool(parts)


def wrong_offset(draw: Any, messages: list[Any]) -> bool:
    parts = _parts(messages)
    if parts:
        draw(st.sampled_from(parts)).chunk_info.chunked_value_offset += draw(st.sampled_from((1, 1000)))
    return bool(parts)


def missing_last_chunk(draw: Any, messages: list[Any]) -> bool:
    last = [part for part in _parts(messages) if part.chunk_info.last_chunk]
    if last:
        draw(st.sampled_from(last)).chunk_info.last_chunk = False
    return bool(last)


def early_last_chunk(draw: Any, messages: list[Any]) -> bool:
    early = [part for part in _parts(messages) if not part.chunk_info.last_chunk]
    if early:
        draw(st.sampled_from(early)).chunk_info.last_chunk = True
    return bool(early)


def value_cut_short(draw: Any, messages: list[Any]) -> bool:
    parts = _parts(messages)
    if parts:
        cell = draw(st.sampled_from(parts)).mutation.set_cell
        cell.value = cell.value[1:]
    return bool(parts)


def message_left_out(draw: Any, messages: list[Any]) -> bool:
    """Leave out a message that continues a chunked value."""
    going_on = [
        number
        for number, m in enumerate(messages)
        if m.data_change.chunks and m.data_change.chunks[0].chunk_info.chunked_value_offset
    ]
    if going_on:
        del messages[draw(st.sampled_from(going_on))]
    return bool(going_on)


def interrupted_value(draw: Any, messages: list[Any]) -> bool:
    """Insert another mutation before a chunk that continues a value."""
    for message in messages:
        chunks = message.data_change.chunks
        if chunks and chunks[0].chunk_info.chunked_value_offset:
            other = Chunk()
            other.mutation.delete_from_family.family_name = "f"
            rest = list(chunks)
            del chunks[:]
            chunks.extend([other, *rest])
            return True
    return False


def value_check_ended(draw: Any, messages: list[Any]) -> bool:
    """Insert another mutation in the middle of a value, and leave out the rest of the value."""
    for number, message in enumerate(messages):
        chunks = message.data_change.chunks
        if chunks and chunks[0].chunk_info.chunked_value_offset:
            for later in messages[number:]:
                first = later.data_change.chunks[0]
                last = first.chunk_info.last_chunk
                first.Clear()
                first.mutation.delete_from_family.family_name = "f"
                if last:
                    return True
    return False


def heartbeat_in_between(draw: Any, messages: list[Any]) -> bool:
    if len(messages) > 1:
        heartbeat = Response()
        heartbeat.heartbeat.continuation_token.token = "t"
        heartbeat.heartbeat.estimated_low_watermark.seconds = 1
        messages.insert(draw(st.integers(1, len(messages) - 1)), heartbeat)
    return len(messages) > 1


def close_in_between(draw: Any, messages: list[Any]) -> bool:
    if len(messages) > 1:
        close = Response()
        close.close_stream.SetInParent()
        messages.insert(draw(st.integers(1, len(messages) - 1)), close)
    return len(messages) > 1


def not_done(draw: Any, messages: list[Any]) -> bool:
    messages[-1].data_change.done = False
    return True


def no_token(draw: Any, messages: list[Any]) -> bool:
    messages[-1].data_change.token = ""
    return True


def no_watermark(draw: Any, messages: list[Any]) -> bool:
    messages[-1].data_change.ClearField("estimated_low_watermark")
    return True


def no_head(draw: Any, messages: list[Any]) -> bool:
    messages[0].data_change.ClearField(
        draw(st.sampled_from(("row_key", "commit_timestamp", "chunks", "type_")))
    )
    return True


def cluster_of_nobody(draw: Any, messages: list[Any]) -> bool:
    if draw(st.booleans()):
        messages[0].data_change.type_ = 2
    else:
        messages[0].data_change.source_cluster_id = ""
    return True


def second_head(draw: Any, messages: list[Any]) -> bool:
    if len(messages) > 1:
        change = messages[draw(st.integers(1, len(messages) - 1))].data_change
        if draw(st.booleans()):
            change.type_ = 1
        else:
            change.row_key = b"other"
    return len(messages) > 1


def delete_from_row(draw: Any, messages: list[Any]) -> bool:
    first = messages[0].data_change.chunks[0]
    first.Clear()
    first.mutation.delete_from_row.SetInParent()
    return True


def empty_mutation(draw: Any, messages: list[Any]) -> bool:
    messages[0].data_change.chunks[0].Clear()
    return True


DAMAGES: list[Damage] = [
    wrong_size, wrong_offset, missing_last_chunk, early_last_chunk, value_cut_short, message_left_out,
    interrupted_value, value_check_ended, heartbeat_in_between, close_in_between, not_done, no_token,
    no_watermark, no_head,
    cluster_of_nobody, second_head, delete_from_row, empty_mutation,
]  # fmt: skip


OF_ENTRIES = {
    wrong_size, wrong_offset, missing_last_chunk, early_last_chunk, value_cut_short, message_left_out,
    interrupted_value, value_check_ended, delete_from_row, empty_mutation,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@settings(
    max_examples=settings().max_examples * 3 // 10,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # many records have no part that a damage needs
@given(record=records, source=st.data())
def test_damage_is_refused(damage: Damage, record: list[Any], source: Any) -> None:
    messages = cut(source.draw, record)
    assume(damage(source.draw, messages))
    for parsed in (received, lambda message: message):
        found = outcome(messages, parsed)
        if found is None:
            continue
        # Only bad entries of a record that is otherwise intact: it has its place, and what the service sent.
        assert damage in OF_ENTRIES
        (damaged,) = found
        assert type(damaged) is DamagedMutation
        assert damaged.token == messages[-1].data_change.token
        assert damaged.row_key == messages[0].data_change.row_key
        assert parts(damaged.data) == [message.data_change for message in messages]


def outcome(messages: list[Any], parsed: Callable[[Any], Any]) -> list[Any] | None:
    """Return the records of messages, None if they are refused."""
    try:
        return decoded(messages, parsed)
    except DecodeError:
        return None


def parts(data: bytes) -> list[Any]:
    found = []
    while data:
        size, data = int.from_bytes(data[:4], "big"), data[4:]
        found.append(type(Response().data_change).FromString(data[:size]))
        data = data[size:]
    return found
