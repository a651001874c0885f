"""A result set decodes to the same records for every chunking into messages."""

from __future__ import annotations

from typing import Any

from google.cloud.spanner_v1.types import result_set
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.spanner.decode import Decoder

PartialResultSet = result_set.PartialResultSet.pb()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    "aä😀", min_size=40, max_size=70
)
mods = st.lists(texts, min_size=3, max_size=3)
columns = st.tuples(texts, texts, st.booleans(), st.just("1")).map(list)
data = st.tuples(
    st.just("2026-01-01T00:00:00.123456Z"), st.just("00000000"), texts, st.booleans(), texts,
    st.lists(columns, max_size=3), st.lists(mods, max_size=4), texts, texts, st.just("1"), st.just("2"),
    texts, st.booleans(),
).map(list)  # fmt: skip
beats = st.just(["2026-01-01T00:00:00Z"])
child = st.tuples(texts, st.lists(texts, max_size=3)).map(list)
children = st.tuples(st.just("2026-01-01T00:00:01Z"), texts, st.lists(child, max_size=3)).map(list)
structs = st.one_of(
    st.lists(data, min_size=1, max_size=3).map(lambda some: [some, [], []]),
    st.lists(beats, min_size=1, max_size=2).map(lambda some: [[], some, []]),
    st.lists(children, min_size=1, max_size=2).map(lambda some: [[], [], some]),
)
rows = st.lists(st.lists(structs, min_size=1, max_size=2), max_size=4)


def cut(draw: Any, value: Any) -> tuple[Any, Any]:
    """Split a string or list in two as result_set.proto allows; merging restores it.

    At the boundary of a list the two neighbours merge when both are strings or lists, so an unsplit neighbour
    is followed by an empty value of its type.
    """
    where = draw(st.integers(0, len(value)))
    if isinstance(value, str):
        return value[:where], value[where:]
    if where < len(value) and isinstance(value[where], str | list) and draw(st.booleans()):
        head, tail = cut(draw, value[where])
        return [*value[:where], head], [tail, *value[where + 1 :]]
    head, tail = value[:where], value[where:]
    if head and tail and isinstance(head[-1], str | list):
        tail = [type(head[-1])(), *tail]
    return head, tail


def messages(draw: Any, plain: list[Any]) -> list[bytes]:
    """Distribute rows over messages; split some values, and split some of the pieces again."""
    sent: list[dict[str, Any]] = [{"values": []}]
    todo = list(plain)
    while todo:
        row = todo.pop(0)
        if draw(st.booleans()):
            head, tail = cut(draw, row)
            sent[-1]["values"].append(head)
            sent[-1]["chunkedValue"] = True
            sent.append({"values": []})
            todo.insert(0, tail)
        else:
            sent[-1]["values"].append(row)
            if draw(st.booleans()):
                sent.append({"values": []})
    return [encoded(message) for message in sent]


def encoded(message: dict[str, Any]) -> bytes:
    return bytes(ParseDict(message, PartialResultSet()).SerializeToString())


def decoded(sent: list[bytes]) -> list[Any]:
    decoder = Decoder()
    records = [record for message in sent for record in decoder.feed(message)]
    decoder.finish()
    return records


@given(rows, st.data())
def test_any_legal_chunking_decodes_equal(plain: list[Any], source: Any) -> None:
    whole = decoded([encoded({"values": plain})])
    assert decoded(messages(source.draw, plain)) == whole
    assert len(whole) == sum(len(kind) for row in plain for struct in row for kind in struct)
