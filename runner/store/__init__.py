"""Stores commit records and state runs on local disks and object stores, behind one interface.

checkpoint = Checkpoint.open(folder)
store = StateStore.open(checkpoint.filesystem, checkpoint.state_folder, runs, first=0, last=63)
store.put(5, b"key", b"value")
runs = store.seal(RunName(attempt.generation, attempt.epoch, task_nonce, stage))
"""

from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.filesystem import FileSystem, LocalFileSystem
from penstock.runner.store.state import StateStore

__all__ = ["Checkpoint", "FileSystem", "LocalFileSystem", "StateStore"]
