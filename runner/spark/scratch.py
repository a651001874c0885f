"""Private folders for what Spark writes to local disks: shuffle blocks, which hold rows.

Spark makes `blockmgr-*` with mode 0755 and its files with 0644, and leaves them behind when it is killed. So each
driver gives Spark a folder of mode 0700 and holds a lock on a file in it. The kernel releases the lock when the
driver ends, however it ends; the next driver removes the folders that it can lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "penstock-spark-"
_LOCK = "driver.lock"
_GRACE_SECONDS = 3600.0
"""A folder without a lock file is younger than its driver's next instruction, or older than this."""


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """A folder that only this user can read, locked until `remove` or the end of the process."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Delete the folder with its contents. The next driver deletes files that a dying JVM still writes."""
        shutil.rmtree(self.path, ignore_errors=True)
        # Unlock last: until then no other driver takes the folder for abandoned and deletes it at the same time.
        os.close(self.lock)


def make_private_folder(base: Path) -> PrivateFolder:
    """Create a private folder below `base`, which is created too.

    Raises:
        OSError: `base` cannot be written to.
    """
    base.mkdir(parents=True, exist_ok=True)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # with mode 0700
        lock = _lock(path, os.O_CREAT)
        if lock is not None:
            return PrivateFolder(path, lock)
        # Another driver took it for abandoned between the two lines above.


def remove_abandoned(base: Path, *, now: float | None = None) -> list[Path]:
    """Delete the private folders below `base` whose drivers have ended; return them.

    Folders of other users are left alone. `now` is in seconds since 1970.
    """
    removed = []
    for path in sorted(base.glob(f"{PREFIX}*")):
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        if (
            info.st_uid == os.getuid()
            and path.is_dir()
            and not path.is_symlink()
            and _abandoned(path, info, now)
        ):
            removed.append(path)
    return removed


def _abandoned(path: Path, info: os.stat_result, now: float | None) -> bool:
    """Delete one folder if its driver is gone; return whether it was."""
    if not (path / _LOCK).exists():
        if info.st_mtime + _GRACE_SECONDS > (time.time() if now is None else now):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    lock = _lock(path, 0)
    if lock is None:
        return False
    PrivateFolder(path, lock).remove()
    return True


def _lock(path: Path, flags: int) -> int | None:
    """Lock a folder's lock file; None if another process holds it or has removed it."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # Between the two calls a driver that took the folder for abandoned may have locked the file, deleted it with the
    # folder and gone: the lock of a file without a name keeps nobody away.
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        return None
    return descriptor
