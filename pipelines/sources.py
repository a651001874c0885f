"""The sources of pipelines whose sink can be chosen. Pure: a transform is imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of source.

    `title`: the source in summaries. `files`: the build function of its pipeline to files, `module:function`, which
    says which arguments of the transform are parameters. `move_filters`: the function that moves filters of the source
    behind the step `MaterializeRows`; "" if the source has no filters that hide a part of a row's changes.
    """

    title: str
    files: str
    move_filters: str = ""

    def build_function(self) -> Any:
        """Import and return the build function of the pipeline to files."""
        return _imported(self.files)

    def filtering_after_rows(self, source: Any, options: Any) -> tuple[Any, Any]:
        """Return the source and the `EventOptions`, with filters behind `MaterializeRows` if there is this step."""
        if not self.move_filters or not options.materialize_rows:
            return source, options
        moved: tuple[Any, Any] = _imported(self.move_filters)(source, options)
        return moved

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the source, without the parameters of events and files."""
        build = self.build_function()
        known = signature(build).parameters
        return {name: known[name] for name in build.source_names}


def _imported(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


SOURCES: Mapping[str, SourceKind] = {
    "bigtable": SourceKind("Bigtable changes", "penstock.pipelines.bigtable_to_files:bigtable_to_files"),
    "postgres": SourceKind("PostgreSQL changes", "penstock.pipelines.postgres_to_files:postgres_to_files"),
    "spanner": SourceKind(
        "Spanner changes",
        "penstock.pipelines.spanner_to_files:spanner_to_files",
        "penstock.pipelines.spanner_to_files:filtering_after_rows",
    ),
    "ydb": SourceKind("YDB changes", "penstock.pipelines.ydb_to_files:ydb_to_files"),
}
