"""Names that the phases, the plan and the harness share. Imports nothing, so that workers need not load the phases."""

from __future__ import annotations

from penstock.compat import StrEnum

SOURCE_URN = "penstock:source:v1"
"""The transform that takes in the elements of a stage."""
SINK_URN = "penstock:sink:v1"
"""A transform that writes elements to edges. Its payload is a JSON list of edge indexes."""
EMPTY_URN = "penstock:empty:v1"
"""A Flatten without inputs."""

READ = "beam:runner:source:v1"
WRITE = "beam:runner:sink:v1"
"""Beam's URNs of a fused stage's ends, which its phases look for (`DATA_INPUT_URN` and `DATA_OUTPUT_URN` of
`bundle_processor` in 2.77). They are written out here because planning must not import Beam's worker internals."""


class BufferKind(StrEnum):
    """The first part of a Beam buffer id, `kind:name`, which both ends of an edge share."""

    MATERIALIZE = "materialize"
    """Beam's own: between two fused stages."""
    GROUP = "group"
    """Beam's own: a GroupByKey."""
    RESHUFFLE = "reshuffle"
    RESIDUAL = "residual"
    """Carried by the commit record to a splittable DoFn."""
    PUBLISH = "publish"
    """Carried by the commit record to a post-commit step."""
    TEST_STREAM = "teststream"
    """Filled by the driver from a TestStream."""
