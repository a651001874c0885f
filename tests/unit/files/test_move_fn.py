"""The post-commit step, as the runner meets it."""

from pathlib import Path

import pytest

from penstock.io.files.local import LocalFolder, OutputError
from penstock.io.files.naming import staged_name
from penstock.io.files.publication import Publication, PublishedFile
from penstock.io.files.write import MoveFn
from penstock.publish import Attempt, CleansUp

SINK = "sink"


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path / "out"))


def staged(folder: LocalFolder, nonce: str = "n", epoch: int = 1) -> Publication:
    name = staged_name(SINK, Attempt("job", 1, epoch, nonce), 0)
    content = folder.stage(name, [b"x\n"])
    return Publication(folder.path, name, f"t/h/{nonce}.jsonl", content.length, content.crc32, content.lines)


def run(move: MoveFn, *publications: Publication) -> list[PublishedFile]:
    move.start_bundle()
    published = [file for publication in publications for file in move.process(publication)]
    move.finish_bundle()
    return published


def test_it_emits_the_same_each_time_also_when_the_file_was_taken_away(folder):
    move, publication = MoveFn(folder, SINK), staged(folder)
    first = run(move, publication)
    assert first == [PublishedFile(f"{folder.path}/t/h/n.jsonl", 2, publication.crc32, 1)]
    assert Path(first[0].path).read_bytes() == b"x\n"
    assert run(move, publication) == first
    Path(first[0].path).unlink()
    assert run(move, publication) == first
    assert not Path(first[0].path).exists()


def test_a_publish_that_fails_raises_and_emits_nothing(folder, tmp_path):
    publication = staged(folder)
    (tmp_path / "out" / "t").write_text("a file where a folder must be")
    emitted: list[PublishedFile] = []
    with pytest.raises(OutputError):
        emitted.extend(MoveFn(folder, SINK).process(publication))
    assert emitted == []


def test_a_publication_is_published_where_it_was_staged_also_when_the_output_was_changed_since(
    folder, tmp_path
):
    publication = staged(folder)
    elsewhere = MoveFn(LocalFolder(str(tmp_path / "new")), SINK)
    assert [file.path for file in run(elsewhere, publication)] == [f"{folder.path}/t/h/n.jsonl"]
    assert not (tmp_path / "new").exists()


def test_it_cleans_up_what_no_publication_names(folder):
    move, named, orphan = MoveFn(folder, SINK), staged(folder, "named"), staged(folder, "orphan")
    later = staged(folder, "later", epoch=2)
    assert isinstance(move, CleansUp)
    move.clean_up("job", 1, 1, [named])
    exists = [Path(folder.path, each.staged).exists() for each in (named, orphan, later)]
    assert exists == [True, False, True]
