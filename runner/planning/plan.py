"""The executable plan of a pipeline: stages, the edges between them, and the level at which each stage runs.

A plan is plain data. The driver builds it once (`graph.py`) and broadcasts it to the workers. It does not depend on
Spark. Protos are serialized, so a worker parses only the stages that it runs.

Levels: an epoch is one Spark job, `level 0 → exchange → level 1 → …`. Stages that start an epoch (Impulse, splittable
DoFns that read, post-commit steps) are at level 0, except a read with side inputs, which is below the stages that make
them. An edge that may change the partition leads one level down. An edge that keeps the partition (a Flatten, an edge
that the commit record carries) stays in its level, and the same task runs both ends. An edge may skip levels; the tasks
of the skipped levels pass its frames on.

Identity: residuals, Publications, state, timers and watermarks in a checkpoint belong to the *unique name* of a user's
transform, never to a fused stage or to an id that Beam generates.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.runner.planning.program import Program
from penstock.runner.planning.worker_logging import WorkerLogging


class Routing(enum.Enum):
    """The rule that sends the elements of an edge to partitions."""

    LOCAL = "local"
    """Stay in the partition of the producer: the consumer does not depend on the partition of an element."""
    ROUND_ROBIN = "spread"
    """Spread evenly over all partitions: a Reshuffle."""
    KEYED = "keyed"
    """By key group of the key; the consumer is a stateful DoFn."""
    GROUPED = "grouped"
    """By key group; the consumer is the reading half of a GroupByKey."""
    RESIDUAL = "residual"
    """Carried by the commit record to the splittable DoFn that reads in the next epochs."""
    PUBLISH = "publish"
    """Carried by the commit record to a post-commit step at the head of the next epoch."""
    BROADCAST = "broadcast"
    """To every partition: a side input."""

    @property
    def carried(self) -> bool:
        """Whether elements end their epoch here and enter the next one at level 0."""
        return self in (Routing.RESIDUAL, Routing.PUBLISH)

    @property
    def is_local(self) -> bool:
        """Whether elements keep the partition of their producer."""
        return self is Routing.LOCAL or self.carried


class Origin(enum.Enum):
    """The origin of the elements of a stage's main input."""

    IMPULSE = "impulse"
    EDGE = "edge"
    RESIDUAL = "residual"
    PUBLISH = "publish"
    TEST_STREAM = "teststream"


@dataclass(frozen=True, slots=True)
class SideInputSpec:
    """Describes an edge that is a side input: its transform and tag, and whether it is looked up by key (`keyed`).

    In a stream the edge's PCollection contains panes of the PCollection `elements`. They are stored under the name
    `state`. `mapping` is the pickled function from a window of the main input to a window of the side input.
    """

    transform: str
    tag: str
    keyed: bool
    elements: str
    state: str
    mapping: bytes


@dataclass(frozen=True, slots=True)
class Edge:
    """The connection between the stages that produce a PCollection and one stage that consumes it.

    - `name`: the consumer's unique transform name (for carried edges: the step that the record names).
    - `collection`: the PCollection whose coder and windowing the elements have on this edge.
    - `level`: where the elements are taken in. `producers` and `consumer` are indexes into `Plan.stages`.
    - `one_timestamp_per_group`: a group of values that is sent to a GroupByKey has one timestamp for all its values.
    """

    index: int
    name: str
    collection: str
    routing: Routing
    level: int
    producers: tuple[int, ...]
    consumer: int
    side: SideInputSpec | None = None
    one_timestamp_per_group: bool = False


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The GroupByKey that a stage begins with.

    `collection` is the PCollection that is grouped. `triggered` means that in batch Beam's own trigger driver fires its
    panes, because the trigger is another one than "once, at the end of the window".
    """

    collection: str
    triggered: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """A fused stage: Beam transforms that process each element together, in one process.

    - `transforms`: proto bytes by unique name. `source` is the one that takes the input.
    - `collection`: the PCollection that the source takes.
    - `inputs`, `outputs`, `sides`: indexes of the edges of the main input, of the output, and of side inputs.
    - `step`: the name in the commit record of the input that starts the stage (Impulse, residuals, Publications); empty
      if the stage gets its input from an edge of this epoch.
    - `reads`: the transform that processes restrictions; empty if there is none.
    - `state`: the stateful transform or GroupByKey whose state the stage keeps; empty if there is none.
    - `group`: the GroupByKey that the stage begins with.
    - `waiting`: the name under which a stream stores elements that wait for side inputs; empty if it has none.
    """

    index: int
    name: str
    level: int
    origin: Origin
    source: str
    collection: str
    transforms: Mapping[str, bytes]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sides: tuple[int, ...] = ()
    step: str = ""
    reads: str = ""
    state: str = ""
    group: GroupSpec | None = None
    waiting: str = ""

    @property
    def label(self) -> str:
        """The user's transforms of the stage, for messages."""
        # Names of the ends that phases add; users do not know them.
        ends = ("/Write", "/Read")
        names = [n for n in self.transforms if not any(end in n for end in ends)]
        return ", ".join(dict.fromkeys(name.removesuffix("/Process") for name in names)) or self.name


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a worker needs to run any stage of the pipeline.

    `components` are the pipeline's PCollections, coders, windowing strategies and environments
    (serialized `Components` without transforms). In a `streaming` plan the commit record carries the residuals of a
    read; in a batch a read runs to its end. `script` is the payload of a TestStream, `program` tells workers where
    to find the user's code, `logging` at which levels to log.
    """

    id: str
    components: bytes
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    streaming: bool
    script: bytes = b""
    program: Program = field(default_factory=Program)
    logging: WorkerLogging = field(default_factory=WorkerLogging)

    @property
    def depth(self) -> int:
        """Number of levels: one more than the highest level of a stage or of the end of an edge."""
        return 1 + max([0, *(s.level for s in self.stages), *(e.level for e in self.edges)])

    def at(self, level: int) -> tuple[Stage, ...]:
        """The stages of one level, in the order in which they run."""
        return tuple(stage for stage in self.stages if stage.level == level)

    def steps_at(self, level: int) -> frozenset[str]:
        """The steps that start stages of one level: Impulses, reads, post-commit steps, outputs of a TestStream."""
        return frozenset(stage.step for stage in self.at(level) if stage.step)

    def carried_at(self, level: int) -> tuple[Edge, ...]:
        """The edges that end at `level` in the commit record."""
        return tuple(e for e in self.edges if e.routing.carried and e.level == level)

    def durable_names(self) -> frozenset[str]:
        """The names of steps that may have state, residuals or Publications in a commit record."""
        states = [name for s in self.stages for name in (s.state, s.waiting) if name]
        carried = [e.name for e in self.edges if e.routing.carried]
        return frozenset(states + carried + [e.side.state for e in self.edges if e.side])

    def last_level_fed_by(self, level: int) -> int:
        """The highest level that takes in an edge produced at `level` (at least `level`)."""
        producers = {stage.index for stage in self.stages if stage.level == level}
        return max([level, *(e.level for e in self.edges if producers & set(e.producers))])

    def fed_by_impulse(self) -> dict[str, frozenset[str]]:
        """For each Impulse the carried steps that its element can reach within an epoch."""
        return {s.step: self._fed(s, set()) for s in self.stages if s.origin is Origin.IMPULSE}

    def _fed(self, stage: Stage, seen: set[int]) -> frozenset[str]:
        # An edge never leads back within an epoch, but several paths may lead to one stage.
        seen.add(stage.index)
        edges = [self.edges[e] for e in stage.outputs]
        fed = {e.name for e in edges if e.routing.carried}
        for edge in edges:
            if not edge.routing.carried and edge.consumer not in seen:
                fed |= self._fed(self.stages[edge.consumer], seen)
        return frozenset(fed)
