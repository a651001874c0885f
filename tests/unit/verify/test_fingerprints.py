"""The keys that one side lacks, that have other rows, or that stand twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.verify.fingerprints import Fingerprints, Progress, Stage
from penstock.verify.folder import DigestFolder

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


def test_a_kept_file_has_what_was_saved_and_not_what_was_added_since(tmp_path: Path) -> None:
    saved = Progress(Stage.SOURCE, "2", 2, 30, 40, "shape")
    with DigestFolder.opened(tmp_path / "digests", keeps=False) as folder, folder.of("a/b", "job") as digests:
        digests.add_source([("1", b"a"), ("2", b"b")])
        digests.save(saved)
        digests.add_source([("3", b"c")])
    with DigestFolder.opened(tmp_path / "digests", keeps=True) as folder, folder.of("a/b", "job") as digests:
        assert digests.progress == saved
        digests.add_target([("1", b"a")])
        assert list(digests.suspects()) == ["2"]


def test_suspects_are_kept_and_digests_are_not(tmp_path: Path) -> None:
    with DigestFolder.opened(tmp_path / "digests", keeps=False) as folder:
        for _ in range(2):
            with folder.of("t", "job") as digests:
                if digests.progress.stage is not Stage.SUSPECTS:
                    digests.add_source([("1", b"a"), ("2", b"b")])
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
    (tmp_path / "t.digests").write_bytes(b"no database" * 100)
    with DigestFolder.opened(tmp_path, keeps=True) as folder, folder.of("t", "one") as digests:
        assert digests.progress == Progress()


def test_a_folder_is_for_one_command_and_without_digests_for_none(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    with DigestFolder.opened(path, keeps=False):
        assert path.stat().st_mode & 0o777 == 0o700
        with pytest.raises(UsageError, match="--folder"), DigestFolder.opened(path, keeps=True):
            pass
    assert not path.exists()
