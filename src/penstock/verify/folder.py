"""A folder next to the checkpoint with digests, from which a stopped comparison continues.

<checkpoint folder>-verify/
  lock                        held while a command uses the folder
  public.orders.digests/      the digests of a table, and how far its comparison is
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from penstock.errors import UsageError
from penstock.verify.fingerprints import Fingerprints

_SUFFIX = ".digests"


class DigestFolder:
    """A folder for one command at a time. `path`: None for temporary files, which cannot be continued."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, keeps: bool) -> Iterator[DigestFolder]:
        """Yield the folder, which is created if it does not exist.

        Args:
            path: the folder. Only this user can read it, because the keys of rows are in it.
            keeps: whether the digests of an earlier comparison are kept, to continue it.

        Raises:
            UsageError: another command uses it.
            OSError: it cannot be written.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another penstock verify of this job uses {path}: wait for its end, or name another folder with "
                    "--folder"
                ) from None
            found = cls(path)
            if not keeps:
                found.remove_digests()
            try:
                yield found
            finally:
                if not any(path.glob(f"*{_SUFFIX}")):
                    found.remove()

    @contextmanager
    def of(self, table: str, identity: str) -> Iterator[Fingerprints]:
        """Yield the digests of a table; see `Fingerprints`."""
        if self.path is None:
            with Fingerprints.in_temporary_folder() as digests:
                yield digests
            return
        with closing(Fingerprints(self.path / f"{quote(table, safe='')}{_SUFFIX}", identity)) as digests:
            yield digests

    def remove_digests(self) -> None:
        """Delete the digests of all tables."""
        if self.path is not None:
            for each in self.path.glob(f"*{_SUFFIX}"):
                # Earlier versions had a file.
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def remove(self) -> None:
        """Delete the folder, at the end of a comparison."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
