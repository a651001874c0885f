"""Says the settings that a message names as the user of a command line gives them. Pure.

Messages are written for programs: ``create_slot=True``, ``with_exception_handling()``, ``--checkpoint_dir``. The same
errors reach users of the command, who give ``--set create_slot=true`` or a line of a job file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Words = Callable[[str], str]
"""Returns a message in the words of a surface."""

_SETTING = re.compile(r"(?<![\w.='\"/{}-])(?:(?:--)?set )?([a-z]\w*)=('[^' ]*'|\"[^\" ]*\"|[\w.:*/-]*\w|…)")
_FLAG = re.compile(r"--([a-z]\w*_\w+)")
_ERROR_OUTPUT = re.compile(r"with_exception_handling(?:\(\))?(?: of the transform)?")
_VALUES = {"True": "true", "False": "false"}


def program_words(text: str) -> str:
    """Return a message as it is."""
    return text


def command_words(parameters: Mapping[str, str], flags: Mapping[str, str]) -> Words:
    """Return the words of the command.

    `parameters`: what `--set` takes for the name of an argument, such as ``nullable_keys`` for
    ``debezium.nullable_keys``. `flags`: the command's name of an option of the runner, both without dashes.
    """

    def setting(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in parameters:
            return match.group()
        plain = value.strip("'\"")
        return f"--set {parameters[name]}={_VALUES.get(plain, plain)}"

    def flag(match: re.Match[str]) -> str:
        return f"--{flags.get(match[1], match[1])}"

    def words(text: str) -> str:
        if "dead_letters" in parameters:
            text = _ERROR_OUTPUT.sub("dead_letters=FOLDER", text)
        return _FLAG.sub(flag, _SETTING.sub(setting, text))

    return words
