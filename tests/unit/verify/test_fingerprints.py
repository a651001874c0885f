"""The keys that one side lacks, that have other rows, or that stand twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.verify import fingerprints as module
from penstock.verify.digests import digests_of, no_rows
from penstock.verify.fingerprints import Fingerprints, Progress, Stage
from penstock.verify.folder import DigestFolder

ROWS = st.dictionaries(st.text('ab"\né', max_size=3), st.sampled_from([b"", b"\x00", b"\x01", b"\x00\x01"]))


def rows(*pairs: tuple[str, bytes]) -> Any:
    return digests_of([key for key, _ in pairs], [key.encode() + b"/" + row for key, row in pairs])


def suspects(
    source: list[tuple[str, bytes]], target: list[tuple[str, bytes]], refused: Sequence[str] = ()
) -> list[str]:
    with Fingerprints.in_temporary_folder() as fingerprints:
        fingerprints.add_source(rows(*source))
        fingerprints.add_source(no_rows(refused))
        fingerprints.add_target(rows(*target[:2]))
        fingerprints.add_target(rows(*target[2:]))
        return sorted(fingerprints.suspects())


@pytest.mark.slow
@given(ROWS, ROWS)
def test_suspects_are_the_keys_whose_rows_differ(source: dict[str, bytes], target: dict[str, bytes]) -> None:
    wanted = [key for key in source.keys() | target.keys() if source.get(key) != target.get(key)]
    assert suspects([*source.items()], [*target.items()]) == sorted(wanted)


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), max_size=60))
def test_digests_that_are_sorted_in_parts_give_the_same_suspects(
    source: list[int], target: list[int]
) -> None:
    sides = [[(str(each), b"") for each in side] for side in (source, target)]
    whole = suspects(*sides)
    assert whole == sorted(
        {str(n) for n in {*source, *target} if (source.count(n), target.count(n)) != (1, 1)}
    )
    with patch.object(module, "_ROWS_AT_ONCE", 4):
        assert suspects(*sides) == whole


def test_a_row_that_the_target_refuses_is_a_suspect() -> None:
    assert suspects([("1", b"a")], [("1", b"a"), ("2", b"")], refused=["2"]) == ["2"]
    assert suspects([], [], refused=["2"]) == ["2"]
    assert suspects([], [], refused=["2", "3"]) == ["2", "3"]


def test_a_row_that_the_target_has_twice_is_a_suspect() -> None:
    assert suspects([("1", b"a"), ("2", b"b")], [("1", b"a"), ("1", b"a"), ("2", b"b")]) == ["1"]


def test_a_kept_file_has_what_was_saved_and_not_what_was_added_since(tmp_path: Path) -> None:
    saved = Progress(Stage.SOURCE, "2", 2, 30, 40, "shape")
    with DigestFolder.opened(tmp_path / "digests", keeps=False) as folder, folder.of("a/b", "job") as digests:
        digests.add_source(rows(("1", b"a"), ("2", b"b")))
        digests.save(saved)
        digests.add_source(rows(("3", b"c")))
    with DigestFolder.opened(tmp_path / "digests", keeps=True) as folder, folder.of("a/b", "job") as digests:
        assert digests.progress == saved
        digests.add_target(rows(("1", b"a")))
        assert list(digests.suspects()) == ["2"]


def test_suspects_are_kept_and_digests_are_not(tmp_path: Path) -> None:
    with DigestFolder.opened(tmp_path / "digests", keeps=False) as folder:
        for _ in range(2):
            with folder.of("t", "job") as digests:
                if digests.progress.stage is not Stage.SUSPECTS:
                    digests.add_source(rows(("1", b"a"), ("2", b"b")))
                assert list(digests.suspects()) == ["1", "2"]


def test_digests_of_another_comparison_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    with DigestFolder.opened(path, keeps=False) as folder, folder.of("t", "one") as digests:
        digests.save(Progress(rows=1))
    with DigestFolder.opened(path, keeps=True) as folder, folder.of("t", "other") as digests:
        assert digests.progress == Progress()
    with DigestFolder.opened(path, keeps=False) as folder, folder.of("t", "other") as digests:
        assert digests.progress == Progress()


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "t.digests").mkdir()
    (tmp_path / "t.digests" / "progress").write_bytes(b"no JSON" * 100)
    with DigestFolder.opened(tmp_path, keeps=True) as folder, folder.of("t", "one") as digests:
        assert digests.progress == Progress()


def test_a_folder_is_for_one_command_and_without_digests_for_none(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    with DigestFolder.opened(path, keeps=False):
        assert path.stat().st_mode & 0o777 == 0o700
        with pytest.raises(UsageError, match="--folder"), DigestFolder.opened(path, keeps=True):
            pass
    assert not path.exists()
