"""No circle of imports in the product. Imports inside functions and for annotations count.

A contract of import-linter compares packages; this test compares modules. A circle that only such imports close loads
without an error, but a reader has to hold its files in the head together.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("penstock", cache_dir=None)
    # `__init__` names the modules of its package for annotations and loads them when a name is used.
    packages = {module for module in graph.modules if graph.find_children(module)}
    imports = {
        module: graph.find_modules_directly_imported_by(module) - packages - {module}
        for module in graph.modules - packages
    }
    assert "penstock.io.kafka.target" in imports["penstock.io.kafka.sender"], (
        "the graph has no modules of sinks"
    )
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError("circle of imports: " + " is imported by ".join(error.args[1])) from None
