"""Values as they were given, each with the place that gave it: flags, the environment, a job file.

    template: spanner-to-files
    parameters:
      project: my-project
      output: /data/orders
    runner:
      checkpoint_dir: /data/checkpoints/orders

A job file is read as its YAML nodes, not as Python objects: every scalar keeps its own text (`0123` stays
`0123`) and every mistake has a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from penstock.suggestions import did_you_mean

SECTIONS = ("template", "parameters", "runner")
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration: where it stands ('' when something is missing) and what to do."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class Given:
    """The text or texts given for one parameter, and where."""

    texts: tuple[str, ...]
    where: str
    listed: bool = False
    """Given as a list (several flags, a YAML sequence), which only a repeated parameter takes."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a job file says. `template` is None where the file does not name a usable one."""

    template: Given | None
    parameters: Mapping[str, Given]
    runner: Mapping[str, Given]
    problems: tuple[Problem, ...]


def from_flags(pairs: Iterable[str]) -> tuple[dict[str, Given], list[Problem]]:
    """Return what `--set name=value` flags give; a name given again adds a value, commas mean nothing."""
    texts: dict[str, list[str]] = {}
    problems = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            problems.append(Problem("--set", f"{name!r} has no value; write --set name=value"))
        else:
            texts.setdefault(name, []).append(text)
    given = {name: Given(tuple(all_), f"--set {name}", len(all_) > 1) for name, all_ in texts.items()}
    return given, problems


def from_environment(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, Given]:
    """Return what PENSTOCK_<NAME> variables give for `names`; an empty variable counts as not set."""
    variables = {name: f"PENSTOCK_{name.upper()}" for name in names}
    return {
        name: Given((environment[variable],), f"environment {variable}")
        for name, variable in variables.items()
        if environment.get(variable)
    }


def read_job(text: str, file: str) -> Job:
    """Return what a job file says, and every mistake of its form; `file` is its name in messages."""
    return _JobReader(file).read(text)


class _JobReader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[Problem] = []

    def read(self, text: str) -> Job:
        sections = self._sections(text)
        return Job(
            template=self._template(sections.get("template")),
            parameters=self._values(sections.get("parameters"), "parameters"),
            runner=self._values(sections.get("runner"), "runner"),
            problems=tuple(self._problems),
        )

    def _sections(self, text: str) -> dict[str, Node]:
        try:
            root = YAML(typ="safe", pure=True).compose(text)
        except MarkedYAMLError as error:
            self._report(error.problem_mark or error.context_mark, f"not YAML: {error.problem}")
            return {}
        except ReaderError as error:
            before = text[: error.position].split("\n")
            place = f"{self._file}:{len(before)}:{len(before[-1]) + 1}"
            forbidden = text[error.position]
            self._problems.append(Problem(place, f"not YAML: the character {forbidden!r} is not allowed"))
            return {}
        if not isinstance(root, MappingNode):
            self._report(getattr(root, "start_mark", None), f"a job file has {', '.join(SECTIONS)}")
            return {}
        sections = {}
        for name, key, node in self._entries(root):
            if name in SECTIONS:
                sections[name] = node
            else:
                self._report(key.start_mark, f"{name!r} is unknown here{did_you_mean(name, SECTIONS)}")
        return sections

    def _template(self, node: Node | None) -> Given | None:
        if node is None:
            self._problems.append(Problem(self._file, "names no template; add a line 'template: NAME'"))
            return None
        if not isinstance(node, ScalarNode) or node.tag == _NULL:
            self._report(node.start_mark, "'template' must be the name of a template")
            return None
        return Given((node.value,), self._place(node.start_mark))

    def _values(self, node: Node | None, section: str) -> dict[str, Given]:
        if node is None or node.tag == _NULL:
            return {}
        if not isinstance(node, MappingNode):
            self._report(node.start_mark, f"{section!r} must be a mapping of names to values")
            return {}
        found = {name: self._given(name, value) for name, _, value in self._entries(node)}
        return {name: given for name, given in found.items() if given is not None}

    def _given(self, name: str, node: Node) -> Given | None:
        place = self._place(node.start_mark)
        if isinstance(node, ScalarNode):
            return None if node.tag == _NULL else Given((node.value,), place)
        if isinstance(node, SequenceNode) and all(isinstance(item, ScalarNode) for item in node.value):
            return Given(tuple(item.value for item in node.value), place, listed=True)
        self._report(node.start_mark, f"{name!r} must be one value or a list of values")
        return None

    def _entries(self, node: MappingNode) -> Iterator[tuple[str, Node, Node]]:
        """Yield (name, key node, value node); of a name that stands twice, only the first, and a problem."""
        seen: dict[str, Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                first = seen[name].start_mark.line + 1
                self._report(key.start_mark, f"{name!r} stands here again; the first is in line {first}")
            else:
                seen[name] = key
                yield name, key, value

    def _report(self, mark: object, text: str) -> None:
        self._problems.append(Problem(self._place(mark), text))

    def _place(self, mark: object) -> str:
        line, column = getattr(mark, "line", 0), getattr(mark, "column", 0)
        return f"{self._file}:{line + 1}:{column + 1}"
