"""The output folder: what a failure leaves, what a repetition changes, what clean-up may touch."""

import errno
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from penstock.io.files import local, naming
from penstock.io.files.local import LocalFolder, OutputError, Staged
from penstock.io.files.publication import Publication
from penstock.publish import Attempt

JOB, SINK = "job-1", "5a5a"


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path / "out"))


def staged_name(
    generation: int = 1, epoch: int = 1, nonce: str = "n", sink: str = SINK, job: str = JOB
) -> str:
    return naming.staged_name(sink, Attempt(job, generation, epoch, nonce), 0)


def stage(folder: LocalFolder, final: str = "t/h/00-of-01_a.jsonl", **name: object) -> Publication:
    """Stage two lines and return the publication that would publish them."""
    staged = staged_name(**name)  # type: ignore[arg-type]
    content = folder.stage(staged, [b"one\n", b"two\n"])
    return Publication(folder.path, staged, final, content.length, content.crc32, content.lines)


def files(folder: LocalFolder) -> set[str]:
    return {str(path.relative_to(folder.path)) for path in Path(folder.path).rglob("*") if path.is_file()}


def failing(code: int):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- staging


def test_staging_says_length_checksum_and_lines_of_what_it_wrote(folder):
    assert folder.stage(staged_name(), [b"one\n", b"", b"t", b"wo\n"]) == Staged(
        8, zlib.crc32(b"one\ntwo\n"), 2
    )
    assert Path(folder.path, staged_name()).read_bytes() == b"one\ntwo\n"


def test_staged_files_are_where_no_reader_looks(folder):
    stage(folder)
    assert files(folder)
    assert all(name.startswith(".") for name in files(folder))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_write_leaves_no_staged_file_and_names_the_remedy(folder, monkeypatch, code):
    monkeypatch.setattr(local.os, "fsync", failing(code))
    Path(folder.path, naming.staging_folder(JOB, SINK)).mkdir(parents=True)
    with pytest.raises(OutputError, match="the pipeline goes on from its checkpoint"):
        stage(folder)
    assert files(folder) == set()


def test_a_failing_source_of_blocks_leaves_no_staged_file(folder):
    def blocks():
        yield b"one\n"
        raise LookupError("state is gone")

    with pytest.raises(LookupError):
        folder.stage(staged_name(), blocks())
    assert files(folder) == set()


def test_a_real_limit_on_file_size_leaves_no_staged_file_and_names_the_remedy(tmp_path):
    """The kernel refuses the write here, as it does on a full disk."""
    code = (
        "import sys; from penstock.io.files.local import LocalFolder, OutputError\n"
        "try: LocalFolder(sys.argv[1]).stage(sys.argv[2], [b'x' * 10_000] * 100)\n"
        "except OutputError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), staged_name()],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert "File too large. Lower roll_bytes" in run.stdout
    assert files(LocalFolder(str(tmp_path))) == set()


# --- publishing


def test_publishing_moves_the_file_whole(folder):
    publication = stage(folder)
    assert folder.publish(publication)
    assert files(folder) == {publication.final}
    assert Path(folder.path, publication.final).read_bytes() == b"one\ntwo\n"


def test_publishing_again_changes_nothing(folder):
    publication = stage(folder)
    folder.publish(publication)
    before = os.stat(Path(folder.path, publication.final))
    assert not folder.publish(publication)
    after = os.stat(Path(folder.path, publication.final))
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_published_file_that_a_consumer_took_away_does_not_come_again(folder):
    publication = stage(folder)
    folder.publish(publication)
    os.unlink(Path(folder.path, publication.final))
    os.rmdir(Path(folder.path, "t/h"))
    assert not folder.publish(publication)
    assert files(folder) == set()


def test_an_existing_final_file_is_never_overwritten(folder):
    publication = stage(folder)
    foreign = Path(folder.path, publication.final)
    foreign.parent.mkdir(parents=True)
    foreign.write_text("foreign")
    with pytest.raises(OutputError, match=r"will not overwrite .*move it away"):
        folder.publish(publication)
    assert foreign.read_text() == "foreign"


def test_a_staged_file_that_something_changed_is_not_published(folder):
    publication = stage(folder)
    Path(folder.path, publication.staged).write_bytes(b"on")
    with pytest.raises(OutputError, match=r"has 2 bytes, its publication says 8.*Restore the file"):
        folder.publish(publication)
    assert files(folder) == {publication.staged}


def test_an_output_that_is_not_mounted_is_not_taken_for_published(folder):
    publication = stage(folder)
    os.rename(folder.path, folder.path + ".elsewhere")
    os.mkdir(folder.path)
    with pytest.raises(OutputError, match=r"cannot tell whether .* mount it"):
        folder.publish(publication)


def test_publishing_survives_a_consumer_who_removes_empty_folders(folder, monkeypatch):
    publication = stage(folder)
    real, removed = os.rename, []

    def rename_after_a_consumer(source, target):
        if not removed:
            removed.append(target)
            os.rmdir(os.path.dirname(target))
        return real(source, target)

    monkeypatch.setattr(local.os, "rename", rename_after_a_consumer)
    assert folder.publish(publication)
    assert removed
    assert files(folder) == {publication.final}


def test_another_publisher_in_between_is_not_mistaken_for_a_foreign_file(folder, monkeypatch):
    publication = stage(folder)
    real, other = os.path.lexists, []

    def lexists_after_another_publisher(path):
        if not other:
            other.append(path)
            os.rename(Path(folder.path, publication.staged), Path(folder.path, publication.final))
        return real(path)

    monkeypatch.setattr(local.os.path, "lexists", lexists_after_another_publisher)
    assert not folder.publish(publication)
    assert files(folder) == {publication.final}


@pytest.mark.parametrize("moved_before", [False, True])
def test_a_publication_is_made_durable_whichever_try_moved_it(folder, monkeypatch, moved_before):
    """After a kill between move and fsync, a loss of power could still undo the move: the next try syncs."""
    publication = stage(folder)
    if moved_before:
        folder.publish(publication)
    synced: list[str] = []
    monkeypatch.setattr(local, "_sync_folder", synced.append)
    folder.publish(publication)
    folder.keep_published([publication])
    for part in (publication.final, publication.staged):
        assert os.path.dirname(os.path.join(folder.path, part)) in synced
    assert os.path.join(folder.path, "") in synced


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EACCES, "write access"), (errno.EROFS, "Remount"), (errno.EXDEV, "mount the output as a whole")],
)
def test_a_refused_move_keeps_the_staged_file_and_names_the_remedy(folder, monkeypatch, code, remedy):
    publication = stage(folder)
    monkeypatch.setattr(local.os, "rename", failing(code))
    with pytest.raises(OutputError, match=remedy):
        folder.publish(publication)
    assert files(folder) == {publication.staged}


def test_a_staging_folder_that_was_made_anew_proves_no_publication(folder):
    """The output was moved away, or its disk is not mounted, and the epoch that failed for it has staged more."""
    lost = stage(folder, epoch=7)
    Path(folder.path).rename(folder.path + "-moved")
    later = stage(folder, final="t/h/00-of-01_b.jsonl", epoch=8)
    with pytest.raises(OutputError, match="cannot tell whether t/h/00-of-01_a.jsonl was published"):
        folder.publish(lost)
    assert folder.publish(later)
    assert not folder.publish(later), "published by the try before"


def test_a_staging_folder_of_a_job_that_went_on_proves_a_publication(folder):
    first, last = stage(folder, epoch=2), stage(folder, final="t/h/00-of-01_b.jsonl", generation=7, epoch=9)
    assert folder.publish(first)
    assert folder.publish(last)
    assert not folder.publish(first)
    assert not folder.publish(last)


# --- clean-up


def test_clean_up_deletes_what_failed_epochs_staged_and_keeps_what_a_record_names(folder):
    named, orphan = stage(folder, epoch=5, nonce="named"), stage(folder, epoch=5, nonce="orphan")
    assert folder.clean_up(JOB, SINK, (1, 5), keep={named.staged}) == 1
    assert files(folder) == {named.staged}
    assert orphan.staged not in files(folder)


def test_clean_up_keeps_what_later_epochs_and_later_generations_stage(folder):
    later = {stage(folder, generation=1, epoch=6).staged, stage(folder, generation=2, epoch=1).staged}
    assert folder.clean_up(JOB, SINK, (1, 5), keep=()) == 0
    assert files(folder) == later


def test_clean_up_deletes_what_an_older_generation_stages_however_late(folder):
    stage(folder, generation=1, epoch=99)
    assert folder.clean_up(JOB, SINK, (2, 5), keep=()) == 1


def test_clean_up_touches_neither_other_sinks_nor_other_jobs_nor_foreign_files(folder):
    others = {stage(folder, sink="other").staged, stage(folder, job="other").staged}
    foreign = Path(folder.path, naming.staging_folder(JOB, SINK), "notes.txt")
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    folder.clean_up(JOB, SINK, (9, 9), keep=())
    assert files(folder) == others | {str(foreign.relative_to(folder.path))}


def test_a_late_clean_up_leaves_what_a_publication_needs_to_be_repeated(folder):
    """Found by the simulation: without the job's folder, nothing tells published from not mounted."""
    publication = stage(folder)
    folder.publish(publication)
    folder.clean_up(JOB, SINK, (1, 1), keep=())
    assert not folder.publish(publication)


def test_clean_up_of_a_job_that_never_staged_does_nothing(folder):
    assert folder.clean_up(JOB, SINK, (1, 1), keep=()) == 0


def test_two_clean_ups_at_once_do_not_disturb_each_other(folder, monkeypatch):
    stage(folder)
    real = os.unlink

    def unlink_twice(path):
        real(path)
        real(path)

    monkeypatch.setattr(local.os, "unlink", unlink_twice)
    assert folder.clean_up(JOB, SINK, (1, 1), keep=()) == 1


# --- the check at construction


def test_the_check_makes_the_folder_and_leaves_nothing_in_it(folder):
    folder.check_writable()
    assert Path(folder.path).is_dir()
    assert files(folder) == set()


def test_an_output_below_a_file_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to the output .*file/out: Not a directory\. Choose"):
        LocalFolder(str(tmp_path / "file" / "out")).check_writable()


def test_an_output_that_is_a_file_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Choose an output that is a folder"):
        LocalFolder(str(tmp_path / "file")).check_writable()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "write access"),
        (errno.EROFS, "Remount"),
        (errno.ENOENT, "where a folder can be made"),  # /proc: its folders are there, and take nothing
    ],
)
def test_an_output_that_may_not_be_written_is_refused_with_the_remedy(folder, monkeypatch, code, remedy):
    monkeypatch.setattr(local.os, "mkdir", failing(code))
    with pytest.raises(OutputError, match=remedy):
        folder.check_writable()
