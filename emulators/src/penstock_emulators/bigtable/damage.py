"""Records damaged on purpose, which a correct reader must refuse. Pure.

Each function takes the complete responses of one record and returns others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_emulators.bigtable.faults import Fault
from penstock_emulators.bigtable.wire import Response


def damaged(responses: Sequence[bytes], fault: Fault, heartbeat: bytes) -> list[bytes] | None:
    """Return the responses of a record with `fault` in them, or None if the record cannot have it.

    `heartbeat` is a complete heartbeat response, for the fault that needs one.
    """
    if fault is Fault.HALF_RECORD:
        # A record of one message has no last one to leave out, so its end is removed.
        return list(responses[:-1]) or [_without_done(responses[0])]
    if fault is Fault.HEARTBEAT_IN_RECORD:
        first = list(responses[:1]) if len(responses) > 1 else [_without_done(responses[0])]
        return [*first, heartbeat, *responses[1:]]
    return _with_damaged_chunks([Response.FromString(response) for response in responses], fault)


def _with_damaged_chunks(responses: Sequence[Any], fault: Fault) -> list[bytes] | None:
    chunks = [chunk for response in responses for chunk in response.data_change.chunks]
    # An offset marks the second chunk of a value and those after it.
    continued = [chunk for chunk in chunks if chunk.chunk_info.chunked_value_offset]
    if not continued:
        return None
    if fault is Fault.WRONG_CHUNK_SIZE:
        continued[0].chunk_info.chunked_value_size += 1
    elif fault is Fault.WRONG_CHUNK_OFFSET:
        continued[0].chunk_info.chunked_value_offset += 1
    elif fault is Fault.MISSING_LAST_CHUNK:
        for chunk in continued:
            chunk.chunk_info.last_chunk = False
    else:
        _interrupt(responses)
    return [response.SerializeToString() for response in responses]


def _interrupt(responses: Sequence[Any]) -> None:
    """Insert another mutation after the first chunk of the first value, at the end of its message."""
    for response in responses:
        chunks = response.data_change.chunks
        last = chunks[-1] if chunks else None
        if last is not None and last.chunk_info.chunked_value_size and not last.chunk_info.last_chunk:
            chunks.add().mutation.delete_from_family.family_name = last.mutation.set_cell.family_name
            return


def _without_done(response: bytes) -> bytes:
    message = Response.FromString(response)
    # Without these three fields a message is the beginning of a record.
    for name in ("done", "token", "estimated_low_watermark"):
        message.data_change.ClearField(name)
    return bytes(message.SerializeToString())
