"""Redistributed elements are spread evenly over all partitions, and neighbours stay together."""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.transforms.window import GlobalWindows
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.harness.elements import ElementCoder
from penstock.runner.harness.writers import RoundRobinWriter
from penstock.runner.planning.plan import Edge, Routing

EDGE = Edge(0, "spread", "", Routing.ROUND_ROBIN, 1, (0,), 1)
CODER = ElementCoder(coders.BytesCoder(), coders.coders.GlobalWindowCoder())


def spread(values: list[bytes], partition: int, partitions: int) -> dict[int, list[list[bytes]]]:
    """The blocks that a writer of one partition sends, by target."""
    found: dict[int, list[list[bytes]]] = {target: [] for target in range(partitions)}
    impl: Any = CODER.get_impl()

    def send(edge: int, target: int, block: bytes) -> None:
        stream = coder_impl.create_InputStream(block)
        elements = []
        while stream.size() > 0:
            elements.append(impl.decode_from_stream(stream, True).value)
        found[target].append(elements)

    writer = RoundRobinWriter(EDGE, CODER, partition, partitions, send)
    for value in values:
        writer.write(GlobalWindows.windowed_value(value))
    writer.flush()
    assert writer.records == len(values)
    return found


@given(st.lists(st.binary(max_size=3), max_size=20), st.integers(1, 5), st.data())
def test_a_small_bundle_is_dealt_in_one_run_each_in_order_beginning_with_its_own_partition(
    values: list[bytes], partitions: int, data: st.DataObject
) -> None:
    own = data.draw(st.integers(0, partitions - 1))
    found = spread(values, own, partitions)
    turns = [found[(own + turn) % partitions] for turn in range(partitions)]
    assert [value for blocks in turns for block in blocks for value in block] == values
    sizes = [sum(map(len, blocks)) for blocks in turns]
    assert max(sizes) - min(sizes) <= 1


def test_a_big_bundle_is_spread_evenly_long_before_its_end() -> None:
    found = spread([bytes([n % 256]) * 1000 for n in range(5000)], 0, 3)
    assert [len(blocks) for blocks in found.values()] == [5, 5, 5]
    shares = [sum(map(len, blocks)) for blocks in found.values()]
    assert sum(shares) == 5000
    assert max(shares) - min(shares) <= 5
