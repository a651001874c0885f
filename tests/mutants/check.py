"""Check each mutant without running it: its texts fit the files, the changed files compile, and its tests exist.

    python tests/mutants/check.py

`make lint` runs it, so the commit that changes a text also changes the mutants that replace this text.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from triples import ROOT, BrokenMutantError, Mutant, definitions, parse_mutants

BLOCK = re.compile(r"^(?:class|(?:async )?def) .*\n(?:[ )].*\n|\n)*", re.MULTILINE)
"""A class or a function at the top level, with the line `) -> None:` of a signature in several lines."""


def problems(root: Path) -> Iterator[str]:
    """Yield a sentence for each fault in the mutants of the tree below `root`."""
    mutants: list[Mutant] = []
    for home, text in definitions(root).items():
        try:
            here = list(parse_mutants(text, home))
        except BrokenMutantError as error:
            yield str(error)
            continue
        names = [mutant.name for mutant in here]
        yield from (f"{home}: {b} comes after {a}: sort by name" for a, b in pairwise(names) if b < a)
        mutants += here
    counts = Counter(mutant.name for mutant in mutants)
    yield from (f"{count} mutants have the name {name}" for name, count in counts.items() if count > 1)
    for mutant in mutants:
        yield from problems_of(mutant, root)


def problems_of(mutant: Mutant, root: Path) -> Iterator[str]:
    """Yield a sentence for each fault of one mutant."""
    try:
        for name, text in mutant.changed_files(root).items():
            if name.endswith(".py"):
                compile_changed(root / name, text)
    except BrokenMutantError as error:
        yield str(error)
    except SyntaxError as error:
        yield f"{mutant.home}: {mutant.name} does not compile: {error}"
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")
        if not (root / file).is_file():
            yield f"{mutant.home}: {mutant.name}: there is no {file}"
        elif tuple(names) not in tests_in(root / file):
            yield f"{mutant.home}: {mutant.name}: {file} has no {'::'.join(names)}"


def compile_changed(file: Path, changed: str) -> None:
    """Compile the one class or function of `file` that differs in `changed`, or all of `changed` if that fails.

    To compile the whole of each file would take five times as long.

    Raises:
        SyntaxError: `changed` does not compile.
    """
    text = file.read_text()
    for begin, end in blocks(file):
        tail = len(text) - end
        if changed.startswith(text[:begin]) and changed.endswith(text[end:]):
            with contextlib.suppress(SyntaxError):
                compile(changed[begin : len(changed) - tail], str(file), "exec", dont_inherit=True)
                return
    compile(changed, str(file), "exec", dont_inherit=True)


@cache
def blocks(file: Path) -> list[tuple[int, int]]:
    """Return where each class and function of a file begins and ends, without its decorators.

    A line without indentation inside of a string may end a block too early.
    """
    text = file.read_text()
    return [match.span() for match in BLOCK.finditer(text)]


@cache
def tests_in(file: Path) -> set[tuple[str, ...]]:
    """Return what a node id may name after the file: nothing, a class, a function, or a class and its method."""
    names: set[tuple[str, ...]] = {()}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add((node.name,))
        elif isinstance(node, ast.ClassDef):
            methods = [method.name for method in node.body if isinstance(method, ast.FunctionDef)]
            names |= {(node.name,), *((node.name, method) for method in methods)}
    return names


def main() -> int:
    faults = list(problems(ROOT))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
