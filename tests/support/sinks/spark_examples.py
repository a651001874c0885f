"""The examples of docs/sinks/spark.md as functions, and the pipeline that runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.event import ChangeEvent, Kind, Op
from penstock.io.spark import WriteToSpark
from penstock.runner import PySparkRunner
from tests.unit.formats.events import event_of, schema_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sinks" / "spark.md"
SCHEMA = schema_of({"id": Kind.INT64}, name=Kind.STRING)
EVENTS = [
    event_of(SCHEMA, Op.CREATE, after={"id": number % 4, "name": f"n{number}"}, timestamp=number * 10**9)
    for number in range(20)
]


def example(name: str, **constants: str) -> Callable[[Any, int], None]:
    """Return the function `name` of the page."""
    code = "\n".join(re.findall(r"```python\n(def .*?)```", PAGE.read_text(), re.DOTALL))
    names: dict[str, Any] = dict(constants)
    exec(compile(code, str(PAGE), "exec"), names)
    return names[name]


class FailsOnce:
    """Calls a function, and then fails, the first time for each id. Notes the ids, and how many rows came with each."""

    def __init__(self, function: Callable[[Any, int], None], notes: Path) -> None:
        self.function, self.notes = function, notes

    def __call__(self, dataframe: Any, epoch_id: int) -> None:
        calls = json.loads(self.notes.read_text()) if self.notes.exists() else []
        rows = sorted(row.asDict(recursive=True)["metadata"]["version"] for row in dataframe.collect())
        self.notes.write_text(json.dumps([*calls, [epoch_id, rows]]))
        self.function(dataframe, epoch_id)
        if [epoch_id] not in [each[:1] for each in calls]:
            raise ConnectionError("lost after the write")


def run(
    spark: Any, folder: Path, sink: WriteToSpark, retries: int = 3, events: list[ChangeEvent] = EVENTS
) -> None:
    flags = [f"--checkpoint_dir={folder}/checkpoint", f"--epoch_retries={retries}", "--epoch_max_records=7"]
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags))
    _ = pipeline | beam.Create(events) | sink
    pipeline.run().wait_until_finish()
