"""Raw values of parameters and options, each with its origin: flags, environment variables, a job file.

    template: spanner-to-files
    parameters:
      project: my-project
      output: /data/orders
    runner:
      checkpoint_dir: /data/checkpoints/orders

A mapping under a parameter is read as one value for each `parameter.name`, the form in which `--set` gives it.
A job file is read as YAML nodes, not as Python objects. So every scalar keeps its own text (`0123` stays `0123`)
and every problem has a line. This module is pure: its functions get the environment and the text as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from penstock.suggestions import did_you_mean

JOB_SUFFIXES = (".yaml", ".yml", ".json")
"""How the names of job files end. JSON is read as YAML, of which it is a part."""

SECTIONS = ("template", "parameters", "runner")

MAX_JOB_CHARACTERS = 64 * 1024
"""Longest accepted job file. A complete one has about 3,000 characters; the pure Python parser needs 2 s for this."""
MAX_NESTING = 8
"""Deepest accepted nesting. A correct job file has three levels: the file, a section, a list of values."""
MAX_NAMES = 200
"""Most names in one section. Each unknown name costs a search for similar names and a long message."""

_TEMPLATE_FIRST = re.compile(r"""(^|\A\s*\{\s*)["']?template["']?\s*:""", re.MULTILINE)
"""The name `template` at the beginning of a line, or of a JSON object."""

_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration: its location ('' for a value that is missing) and what to do about it."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class RawValue:
    """The text or texts that one origin has for one parameter, before the parameter's type reads them."""

    texts: tuple[str, ...]
    where: str
    listed: bool = False
    """True for a YAML sequence and for a repeated flag. Only repeated parameters accept those."""


@dataclass(frozen=True, slots=True)
class Job:
    """The content of a job file. `template` is None if the file does not contain a usable name."""

    template: RawValue | None
    parameters: Mapping[str, RawValue]
    runner: Mapping[str, RawValue]
    problems: tuple[Problem, ...]


def from_flags(pairs: Iterable[str]) -> tuple[dict[str, RawValue], list[Problem]]:
    """Return the values of `--set name=value` flags. A repeated name adds a value; commas have no meaning."""
    texts: dict[str, list[str]] = {}
    problems = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            problems.append(Problem("--set", f"{name!r} has no value; write --set name=value"))
        else:
            texts.setdefault(name, []).append(text)
    values = {
        name: RawValue(tuple(each), f"--set {name}", listed=len(each) > 1) for name, each in texts.items()
    }
    return values, problems


def from_environment(environment: Mapping[str, str], names: Iterable[str]) -> dict[str, RawValue]:
    """Return the values of the variables PENSTOCK_<NAME> for `names`. An empty variable counts as not set."""
    variables = {name: f"PENSTOCK_{name.upper()}" for name in names}
    return {
        name: RawValue((environment[variable],), f"environment {variable}")
        for name, variable in variables.items()
        if environment.get(variable)
    }


def _in_words(problem: str) -> str:
    """Return a problem of the YAML parser; a tab at the start of a line is so common that it gets its own words."""
    return "a tab; indent with spaces" if "'\\t'" in problem else problem


def read_job(text: str, file: str) -> Job:
    """Return the content of a job file and all problems of its form; messages call the file `file`."""
    return _JobReader(file).read(text)


def is_meant_as_job(text: str) -> bool:
    """Return whether the text of a file is a job file, maybe with mistakes: it has `template` at its top level.

    A folder of job files may have other YAML and JSON, which is no job that cannot be read. A text that is not YAML has
    no top level: of it, a line that begins with the name is enough, so that a typing error does not hide a job.
    """
    return bool(_TEMPLATE_FIRST.search(text)) or read_job(text, "").template is not None


class _JobReader:
    """Reads one job file and collects its problems."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[Problem] = []

    def read(self, text: str) -> Job:
        root = self._root(text)
        if root is None:  # the file as a whole is unusable, so its sections are not reported as missing
            return Job(None, {}, {}, tuple(self._problems))
        sections = self._sections(root)
        return Job(
            template=self._template(sections.get("template")),
            parameters=self._values(sections.get("parameters"), "parameters"),
            runner=self._values(sections.get("runner"), "runner"),
            problems=tuple(self._problems),
        )

    def _root(self, text: str) -> MappingNode | None:
        if len(text) > MAX_JOB_CHARACTERS:
            problem = (
                f"is longer than {MAX_JOB_CHARACTERS:,} characters, so it is not read; is it a job file?"
            )
            self._problems.append(Problem(self._file, problem))
            return None
        # Only the pure Python parser has `max_depth`. Without it the composer recurses once for each level.
        yaml = YAML(typ="safe", pure=True)
        yaml.max_depth = MAX_NESTING
        try:
            root = yaml.compose(text)
        except MaxDepthExceededError as error:
            self._report(
                error.problem_mark, f"is nested deeper than {MAX_NESTING} levels; a job file has three"
            )
        except MarkedYAMLError as error:
            self._report(error.problem_mark or error.context_mark, f"not YAML: {_in_words(error.problem)}")
        except ReaderError as error:
            self._report_character(text, error.position)
        else:
            if isinstance(root, MappingNode):
                return root
            self._report(getattr(root, "start_mark", None), f"a job file has {', '.join(SECTIONS)}")
        return None

    def _sections(self, root: MappingNode) -> dict[str, Node]:
        sections = {}
        for name, key, node in self._entries(root):
            if name in SECTIONS:
                sections[name] = node
            else:
                self._report(key.start_mark, f"{name!r} is unknown here{did_you_mean(name, SECTIONS)}")
        return sections

    def _template(self, node: Node | None) -> RawValue | None:
        if node is None:
            self._problems.append(Problem(self._file, "names no template; add a line 'template: NAME'"))
            return None
        if not isinstance(node, ScalarNode) or node.tag == _NULL:
            self._report(node.start_mark, "'template' must be the name of a template")
            return None
        return RawValue((node.value,), self._location(node.start_mark))

    def _values(self, node: Node | None, section: str) -> dict[str, RawValue]:
        if node is None or node.tag == _NULL:
            return {}
        if not isinstance(node, MappingNode):
            self._report(node.start_mark, f"{section!r} must be a mapping of names to values")
            return {}
        values = {}
        for name, _, value in self._entries(node):
            inner = self._entries(value) if isinstance(value, MappingNode) else None
            if inner is None:
                values[name] = self._value(name, value)
            else:
                values |= {f"{name}.{key}": self._value(f"{name}.{key}", each) for key, _, each in inner}
        return {name: value for name, value in values.items() if value is not None}

    def _value(self, name: str, node: Node) -> RawValue | None:
        location = self._location(node.start_mark)
        if isinstance(node, ScalarNode):
            return None if node.tag == _NULL else RawValue((node.value,), location)
        if isinstance(node, SequenceNode) and all(isinstance(item, ScalarNode) for item in node.value):
            return RawValue(tuple(item.value for item in node.value), location, listed=True)
        self._report(node.start_mark, f"{name!r} must be one value or a list of values")
        return None

    def _entries(self, node: MappingNode) -> Iterator[tuple[str, Node, Node]]:
        """Yield (name, key node, value node). Of a repeated name only the first is yielded, with a problem."""
        if len(node.value) > MAX_NAMES:
            self._report(node.start_mark, f"has {len(node.value):,} names here; at most {MAX_NAMES} are read")
        seen: dict[str, Node] = {}
        for key, value in node.value[:MAX_NAMES]:
            # The text of a key that is itself a list or mapping could be huge: aliases in it expand exponentially.
            if not isinstance(key, ScalarNode):
                self._report(key.start_mark, "a name must be plain text, not a list or a mapping")
            elif key.value in seen:
                first = seen[key.value].start_mark.line + 1
                self._report(key.start_mark, f"{key.value!r} is given twice; the first is in line {first}")
            else:
                seen[key.value] = key
                yield key.value, key, value

    def _report(self, mark: object, text: str) -> None:
        self._problems.append(Problem(self._location(mark), text))

    def _report_character(self, text: str, position: int) -> None:
        before = text[:position].split("\n")
        location = f"{self._file}:{len(before)}:{len(before[-1]) + 1}"
        self._problems.append(Problem(location, f"not YAML: the character {text[position]!r} is not allowed"))

    def _location(self, mark: object) -> str:
        line, column = getattr(mark, "line", 0), getattr(mark, "column", 0)
        return f"{self._file}:{line + 1}:{column + 1}"
