"""The state that drivers share: storage, staged and published files, a consumer; and the invariants over it.

The invariants are those of `docs/protocol.md` and of the model in `docs/model`. They are checked at the step
that could break them, from ghost variables (`ever`, `published`, `digests`, `taken_in`) that no driver sees.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from protocol_scheduler import Scheduler, Violation

from penstock.runner.protocol import CommitRecord, OutcomeUnknownError, Publication
from penstock.runner.protocol.names import run_age
from penstock.runner.protocol.record_codec import decode_record, record_digest, with_side_file
from penstock.runner.store import FileSystem, StateStore
from penstock.runner.store.runs import RunCache

FOLDER = "checkpoint"
STAGE = "count"
KEY_GROUPS = 4
SOURCE = {"p0": ["a", "b", "a", "a", "b", "a"], "p1": ["c", "c", "d", "c"]}
"""Partition -> the keys of its changes, in order; change i of a key carries the number i."""


def source_items(partition: str) -> list[tuple[str, int]]:
    """Return the partition's changes as (key, number of the change among those of its key)."""
    seen: Counter[str] = Counter()
    items = []
    for key in SOURCE[partition]:
        items.append((key, seen[key]))
        seen[key] += 1
    return items


def group_of(key: str) -> int:
    """Return a key's key group."""
    return sum(key.encode()) % KEY_GROUPS


@dataclass(frozen=True)
class Published:
    """The decoded element of a Publication."""

    staged: str
    final: str


def published(publication: Publication) -> Published:
    """Decode a Publication."""
    return Published(*json.loads(publication.element))


@dataclass
class World:
    """Storage and ghost variables."""

    schedule: Scheduler
    files: dict[str, bytes] = field(default_factory=dict)
    staged: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    final: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    ever: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    published: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    file_system_of: Callable[[World], FileSystem] = lambda world: SharedFiles(world)
    taken_in: list[str] = field(default_factory=list)
    last: CommitRecord | None = None

    def complete(self) -> bool:
        """Return whether everything is published and the last record contains that."""
        return self.last is not None and self.last.state.done

    # published files

    def move(self, names: Published) -> None:
        """The sink's publish step: one atomic move; a staged file that is missing was moved before."""
        if (items := self.staged.pop(names.staged, None)) is None:
            return
        require(names.final not in self.ever, f"I2 {names.final} is made a second time")
        for key, number in items:
            require(
                number == self.published[key],
                f"I1 {key}{number} published after {self.published[key]} others",
            )
            self.published[key] += 1
        self.ever[names.final] = self.final[names.final] = items

    def consume(self) -> None:
        """Let a consumer remove a published file."""
        if self.final:
            self.final.pop(self.schedule.rng.choice(sorted(self.final)))

    def delete_staged(self, name: str) -> None:
        """The sink's clean-up of one file."""
        self.staged.pop(name, None)
        self.check_named()

    # records

    def record_created(self, path: str, data: bytes) -> None:
        """Look at a record that has just appeared."""
        record = decode_record(data)
        if self.last is not None and record.number <= self.last.number:
            return  # of a driver that lost long ago, where an old record was deleted: it must find out itself
        if record.side_file is not None:
            path = side_path(record.side_file.name)
            require(path in self.files, f"I3 record {record.number} names {path}, which is missing")
            record = with_side_file(record, self.files[path])
        require(
            record.parent == self.digests.get(record.number - 1),
            f"I6 record {record.number} has another parent",
        )
        if record.kind == "epoch" and self.last is not None:
            self._epoch_follows(self.last)
        self.digests[record.number] = record_digest(data)
        self.last = record
        self.check_named()

    def _epoch_follows(self, before: CommitRecord) -> None:
        for names in map(published, before.state.publications):
            require(names.final in self.ever, f"I1 a commit passed {names.final}, which is not published")
            self.taken_in.append(names.final)

    def check_named(self) -> None:
        """I3: what the last record names exists (a Publication's file: or has been published)."""
        if self.last is None:
            return
        if self.last.side_file is not None:
            path = side_path(self.last.side_file.name)
            require(path in self.files, f"I3 side file {path} is gone")
        for run in self.last.state.state_runs:
            require(f"{FOLDER}/state/{run.name}" in self.files, f"I3 state run {run.name} is gone")
        for names in map(published, self.last.state.publications):
            require(names.staged in self.staged or names.final in self.ever, f"I3 {names.staged} is gone")

    def check_state(self) -> None:
        """I4 and I5: state equals position, and what was published was taken in exactly once."""
        if self.last is None or not self.last.epochs:
            return
        state = self.last.state
        store = StateStore.open(
            QuietFiles(self), f"{FOLDER}/state", state.state_runs, 0, KEY_GROUPS - 1, cache=RunCache()
        )
        entries = {key.decode(): value for _, key, value in store.scan(0, KEY_GROUPS - 1)}
        positions = {partition: len(keys) for partition, keys in SOURCE.items()}
        positions |= {r.element_id: int(r.element) for r in state.residuals}
        want = Counter(k for partition, end in positions.items() for k in SOURCE[partition][:end])
        have = {key[6:]: int(count) for key, count in entries.items() if key.startswith("count/")}
        require(have == want, f"I4 counts {have}, positions {positions}")
        seen = {key[5:]: int(count) for key, count in entries.items() if key.startswith("seen/")}
        require(seen == Counter(self.taken_in), f"I5 taken in {seen}, published {self.taken_in}")


def side_path(name: str) -> str:
    """Return the path of a side file."""
    return f"{FOLDER}/side/{name}"


def require(holds: bool, claim: str) -> None:
    """Stop the run when an invariant does not hold."""
    if not holds:
        raise Violation(claim)


class QuietFiles:
    """The shared storage for the checks of invariants: without scheduling points and faults."""

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, path: str) -> bytes:
        try:
            return self._world.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def local_path(self, path: str) -> str | None:
        return None


class SharedFiles(QuietFiles):
    """A `FileSystem` of one driver: every call is a point, and creates may lose their answer."""

    def create_if_absent(self, path: str, data: bytes) -> bool:
        world = self._world
        world.schedule.point(f"create {path}")
        if world.schedule.fault("no answer, nothing happened"):
            raise OutcomeUnknownError
        if world.schedule.fault("no answer, the request is still under way"):
            world.schedule.later(f"late create of {path}", lambda: self._create(path, data) and None)
            raise OutcomeUnknownError
        created = self._create(path, data)
        if world.schedule.fault("no answer, but it happened"):
            raise OutcomeUnknownError
        return created

    def _create(self, path: str, data: bytes) -> bool:
        if path in self._world.files:
            return False
        self._world.files[path] = data
        if path.endswith(".record"):
            self._world.record_created(path, data)
        return True

    def write(self, path: str, data: bytes) -> None:
        self._world.schedule.point(f"write {path}")
        require(path not in self._world.files, f"two attempts write {path}")
        if self._world.schedule.fault("disk full"):
            self._world.files[path] = data[: len(data) // 2]
            raise OSError("no space left")
        self._world.files[path] = data

    def read(self, path: str) -> bytes:
        self._world.schedule.point(f"read {path}")
        return super().read(path)

    def list(self, folder: str) -> list[str]:
        self._world.schedule.point(f"list {folder}")
        inside = folder + "/"
        names = (path.removeprefix(inside) for path in self._world.files if path.startswith(inside))
        return sorted({name.split("/")[0] for name in names})

    def may_reappear(self, path: str) -> bool:
        return False

    def exists(self, path: str) -> bool:
        self._world.schedule.point(f"look for {path}")
        return path in self._world.files

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: len(self._world.files[f"{folder}/{name}"]) for name in self.list(folder)}

    @property
    def lists_cheaply(self) -> bool:
        return True

    def delete(self, path: str) -> None:
        self._world.schedule.point(f"delete {path}")
        self._world.files.pop(path, None)
        self._world.check_named()

    def delete_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.delete(path)

    def discard_copy(self, path: str) -> bool:
        return False

    def forget_copies(self, folder: str, alive: Collection[str], before: tuple[int, int]) -> None:
        pass

    def location_of(self, path: str) -> str:
        return path

    def check_guarantees(self) -> None:
        pass

    def make_private(self, folder: str) -> None:
        pass

    def delete_leftovers(self, folder: str, older_than_s: float) -> int:
        return 0


def clean_up_staged(world: World, record: CommitRecord) -> None:
    """The sink's clean-up: delete files that are not younger than the record and not named by it."""
    named = {published(p).staged for p in record.state.publications}
    for name in sorted(world.staged):
        age = run_age(name)
        assert age is not None
        if name not in named and age <= (record.generation, record.number):
            world.schedule.point(f"delete staged {name}")
            world.delete_staged(name)
