"""The keys that one side lacks, that have other rows, or that stand twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.verify.fingerprints import Fingerprints

ROWS = st.dictionaries(st.text('ab"é', max_size=3), st.sampled_from([b"", b"\x00", b"\x01", b"\x00\x01"]))


def suspects(source: list[tuple[str, bytes]], target: list[tuple[str, bytes]]) -> list[str]:
    with Fingerprints.in_temporary_file() as fingerprints:
        fingerprints.add_source(source)
        fingerprints.add_target(target[:2])
        fingerprints.add_target(target[2:])
        return sorted(fingerprints.suspects())


@given(ROWS, ROWS)
def test_suspects_are_the_keys_whose_rows_differ(source: dict[str, bytes], target: dict[str, bytes]) -> None:
    wanted = [key for key in source.keys() | target.keys() if source.get(key) != target.get(key)]
    assert suspects([*source.items()], [*target.items()]) == sorted(wanted)


def test_a_row_that_the_target_has_twice_is_a_suspect() -> None:
    assert suspects([("1", b"a"), ("2", b"b")], [("1", b"a"), ("1", b"a"), ("2", b"b")]) == ["1"]
