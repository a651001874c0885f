"""The windows of a key that may still merge, each with the addresses of its values.

They are one cell for each key. The cell is decoded once for many windows that begin or end in an epoch, and stored once
after them: with a read and a write for each window, the cost of a key would grow with the square of its windows.

Growth: the windows of the keys that were used last, about `MAX_KEPT` of them, or of one key if it has more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from penstock.runner.store.cells import Cells, pack, unpack
from penstock.runner.store.keys import key_group

MAX_KEPT = 10_000
"""Windows that are kept decoded."""
_ACTIVE = b"active"

Addresses = dict[bytes, list[bytes]]
"""By encoded window, the addresses of its values."""


@dataclass(slots=True)
class _Kept:
    windows: Addresses
    stored: int
    """How many windows counted when the entry was last looked at."""
    changed: bool = False


class ActiveWindows:
    """The active windows of all keys of a state store. Changes are in the store after `store`."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._count = 0

    def of(self, key: bytes) -> Addresses:
        """Return the windows of a key. A caller that changes them calls `changed` at once."""
        kept = self._kept.get(key)
        if kept is None:
            data = b"".join(self._cells.chunks(key_group(key), key, b"", _ACTIVE))
            windows = {window: addresses for window, *addresses in map(unpack, unpack(data))}
            kept = self._kept[key] = _Kept(windows, len(windows))
            self._count += len(windows)
        self._kept.move_to_end(key)
        self._drop_surplus()
        return kept.windows

    def changed(self, key: bytes) -> None:
        """Note that the windows of a key, which `of` has just returned, were changed."""
        kept = self._kept[key]
        kept.changed = True
        self._count += len(kept.windows) - kept.stored
        kept.stored = len(kept.windows)

    def store(self) -> None:
        """Store what was changed."""
        for key, kept in self._kept.items():
            self._store(key, kept)

    def _drop_surplus(self) -> None:
        while self._count > MAX_KEPT and len(self._kept) > 1:
            key, kept = self._kept.popitem(last=False)
            self._count -= kept.stored
            self._store(key, kept)

    def _store(self, key: bytes, kept: _Kept) -> None:
        if not kept.changed:
            return
        kept.changed = False
        if not kept.windows:
            self._cells.clear(key_group(key), key, b"", _ACTIVE)
            return
        data = pack(*(pack(window, *addresses) for window, addresses in kept.windows.items()))
        self._cells.replace(key_group(key), key, b"", _ACTIVE, data)
