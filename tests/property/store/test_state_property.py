"""The state store compared with a dictionary: sealed, rescaled, with and without a cache, with failed attempts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.runner.protocol import RunName
from penstock.runner.store import StateStore, state
from penstock.runner.store.runs import RunCache

GROUPS = 4
KEYS = st.sampled_from([b"", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"])
GROUP = st.integers(0, GROUPS - 1)
VALUES = st.none() | st.binary(max_size=3) | st.just(b"x" * 5000)
WRITES = st.lists(st.tuples(GROUP, KEYS, VALUES), min_size=1, max_size=12)


@dataclass(eq=False)
class MemoryFiles:
    """The part of a `FileSystem` that runs use."""

    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: str, data: bytes) -> None:
        assert path not in self.files
        self.files[path] = data

    def write_file(self, path: str, local: str) -> None:
        self.write(path, Path(local).read_bytes())

    def read(self, path: str) -> bytes:
        return self.files[path]

    def local_path(self, path: str) -> None:
        return None


class StateOverEpochs(RuleBasedStateMachine):
    """Several task attempts write, each to a range of key groups; a dictionary holds the expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryFiles()
        self.cache = RunCache(limit_runs=3)
        self.epoch = 1
        self.runs = []
        self.ever: set[tuple[int, bytes]] = set()
        self.sealed: dict[tuple[int, bytes], bytes] = {}
        self.content: dict[tuple[int, bytes], bytes] = {}

    @initialize(
        small=st.sampled_from([0, 1 << 14, 1 << 16]),
        large=st.sampled_from([0, 1 << 26]),
        spill=st.sampled_from([500, 2000, 1 << 26]),
        large_entry=st.sampled_from([1, 1 << 14]),
        bounds=st.just([0, GROUPS]),
    )
    def begin(self, small, large, spill, large_entry, bounds):
        """Vary the thresholds, which decide about merges and scratch files and must not change reads."""
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(state, "SMALL_BYTES", small)
        self.limits.setattr(state, "LARGE_BYTES", large)
        self.limits.setattr(state, "SPILL_BYTES", spill)
        self.limits.setattr(state, "LARGE_ENTRY_BYTES", large_entry)
        self._open(bounds)

    def teardown(self):
        if hasattr(self, "limits"):
            self.limits.undo()

    def _open(self, bounds):
        self.stores = [
            StateStore.open(self.storage, "state", self.runs, first, beyond - 1, cache=self.cache)
            for first, beyond in itertools.pairwise(bounds)
        ]
        self.bounds = bounds
        self.content = dict(self.sealed)

    def _store(self, group):
        return next(s for s, beyond in zip(self.stores, self.bounds[1:], strict=True) if group < beyond)

    @rule(writes=WRITES)
    def write(self, writes):
        for group, key, value in writes:
            if value is None:
                self._store(group).delete(group, key)
                self.content.pop((group, key), None)
            else:
                self._store(group).put(group, key, value)
                self.content[group, key] = value
                self.ever.add((group, key))

    @rule(group=GROUP, prefix=KEYS)
    def clear(self, group, prefix):
        gone = [k for k in self.content if k[0] == group and k[1].startswith(prefix)]
        assert self._store(group).clear(group, prefix) == len(gone)
        for key in gone:
            del self.content[key]

    @rule(group=GROUP, prefix=KEYS, stop=st.none() | KEYS)
    def scan(self, group, prefix, stop):
        found = list(self._store(group).scan(group, group, prefix, stop))
        want = [
            (g, k, v)
            for (g, k), v in sorted(self.content.items())
            if g == group and k.startswith(prefix) and (stop is None or k < stop)
        ]
        assert found == want

    @rule(prefix=KEYS, stop=st.none() | KEYS)
    def scan_many_groups(self, prefix, stop):
        found = [row for s in self.stores for row in s.scan(s._first, s._last, prefix, stop)]
        assert found == [
            (*place, value)
            for place, value in sorted(self.content.items())
            if place[1].startswith(prefix) and (stop is None or place[1] < stop)
        ]

    @rule(prefix=KEYS)
    def find_the_first_of_each_group(self, prefix):
        found = [place for s in self.stores for place in s.first_keys(s._first, s._last, prefix)]
        matching = [place for place in sorted(self.content, reverse=True) if place[1].startswith(prefix)]
        assert sorted(found) == sorted({group: (group, key) for group, key in matching}.values())

    @rule(writes=WRITES, cuts=st.sets(st.integers(1, GROUPS - 1)), keep=st.booleans())
    def commit_and_rescale(self, writes, cuts, keep):
        """All attempts seal, the driver commits, and the next epoch distributes the key groups again."""
        self.write(writes)
        self.epoch += 1
        self.runs = [r for s in self.stores for r in s.seal(RunName(1, self.epoch, "aa", "Count"))]
        self.sealed = dict(self.content)
        if not keep:
            self.cache = RunCache()
        self._open([0, *sorted(cuts), GROUPS])

    @rule(writes=WRITES, nonce=st.sampled_from(["bb", "cc"]))
    def fail(self, writes, nonce):
        """The attempts seal under the next epoch's number, but the driver never commits them."""
        self.write(writes)
        for store in self.stores:
            path = f"state/{RunName(1, self.epoch + 1, nonce, 'Count').file_name(store._first, store._last)}"
            if path not in self.storage.files:
                store.seal(RunName(1, self.epoch + 1, nonce, "Count"))
        self._open(self.bounds)

    @invariant()
    def everything_is_read_in_order(self):
        if hasattr(self, "stores"):
            scans = [s.scan(s._first, s._last) for s in self.stores]
            found = [row for scan in scans for row in scan]
            assert found == [(*place, value) for place, value in sorted(self.content.items())]

    @invariant()
    def what_is_not_there_is_not_found(self):
        """Deleted keys, which older runs may still contain, must not be returned."""
        for group, key in getattr(self, "ever", ()):
            assert self._store(group).get(group, key) == self.content.get((group, key))


TestStateOverEpochs = StateOverEpochs.TestCase
TestStateOverEpochs.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
