"""A folder that cannot be made is told before the start, and nothing is left behind."""

from pathlib import Path

import pytest

from penstock.folders import check_creatable


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    check_creatable(str(tmp_path / "a" / "b"))
    check_creatable(str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["/proc/x/y", "{file}/x", "{file}"])
def test_a_folder_that_cannot_be_made_is_named_with_the_place_that_refuses(
    folder: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match="nothing can be created in (/proc|.*file): ") as error:
        check_creatable(folder.format(file=file))
    assert ".penstock-" not in str(error.value)
