"""Each stage of a plan comes after the stages that produce its input, for any order in which Beam returns stages."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.runners.worker import bundle_processor

from penstock.runner import PySparkRunner
from penstock.runner.planning import urns
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Plan

TRIES = 30
"""Beam keeps stages in sets, so their order is another one each time."""


def _each_beside_the_other() -> Plan:
    """Two steps that take a side input of each other's main input: one of them an exchange later."""
    pipeline = beam.Pipeline(runner=PySparkRunner())
    first = pipeline | beam.Create([("a", 1)]) | "First" >> beam.Map(lambda pair: pair)
    later = first | beam.CombinePerKey(sum) | beam.Reshuffle()
    for name, main, side in (("later", later, first), ("first", first, later)):
        _ = main | name >> beam.Map(lambda pair, beside: (pair, len(list(beside))), beam.pvalue.AsIter(side))
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)


@pytest.mark.slow
def test_the_producers_of_a_stage_have_a_lower_level_or_index() -> None:
    for plan in (_each_beside_the_other() for _ in range(TRIES)):
        for edge in plan.edges:
            consumer = plan.stages[edge.consumer]
            for producer in (plan.stages[index] for index in edge.producers):
                if edge.routing.is_local:
                    assert (producer.level, producer.index) < (consumer.level, consumer.index)
                else:
                    assert producer.level < consumer.level


def test_a_stage_is_labelled_in_the_order_of_its_data() -> None:
    pipeline = beam.Pipeline(runner=PySparkRunner())
    numbers = pipeline | beam.Impulse() | "First" >> beam.FlatMap(lambda _: [1])
    for name in ("Second", "Third", "Fourth"):
        numbers = numbers | name >> beam.Map(lambda n: n)
    _ = numbers | "Fifth" >> beam.Map(lambda n: (n, n)) | beam.GroupByKey() | "Sixth" >> beam.Map(str)
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)
    assert [stage.label for stage in plan.stages] == ["Impulse, First, Second, Third, Fourth, Fifth", "Sixth"]


def test_the_ends_of_a_stage_have_the_urns_that_beams_worker_gives_them() -> None:
    assert (urns.READ, urns.WRITE) == (bundle_processor.DATA_INPUT_URN, bundle_processor.DATA_OUTPUT_URN)
