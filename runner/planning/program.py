"""The parts of the driver's own program that workers need: the classes of its `__main__`, and the path of its modules.

A pickled object names its class by module and name. In a notebook or a script that module is `__main__`, which is
another program in a worker. In a test, or in a helper next to a script, it is a module that only the driver would find.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from apache_beam.internal import pickler

logger = logging.getLogger(__name__)

_MAIN = "__main__"
_adopted: dict[str, type] = {}
"""The classes that this process has put into its `__main__`, by name."""


@dataclass(frozen=True, slots=True)
class Program:
    """The classes of a driver's `__main__`, pickled, by name, and its absolute search path."""

    classes: Mapping[str, bytes] = field(default_factory=dict)
    path: tuple[str, ...] = ()


def program_of_driver() -> Program:
    """Return the program of this process. Classes that cannot be pickled by value are left out."""
    found = {}
    for name, each in list(vars(sys.modules[_MAIN]).items()):
        if isinstance(each, type) and each.__module__ == _MAIN:
            try:
                found[name] = pickler.dumps(each)
            except Exception as error:
                logger.debug("the class %s stays with the driver: %s", name, type(error).__name__)
    return Program(found, tuple(os.path.abspath(entry) for entry in sys.path))


def adopt_program(program: Program) -> None:
    """Make the modules and classes of a driver's program known to this process.

    Folders that exist on this machine are appended to the search path. A class replaces an earlier class of the driver
    with this name in `__main__`. It replaces nothing else there.
    """
    # Appended: a package that is installed on this machine wins over one in the driver's folders.
    sys.path.extend(entry for entry in program.path if entry not in sys.path and os.path.exists(entry))
    main = sys.modules[_MAIN]
    for name, pickled in program.classes.items():
        # A different object belongs to the program of this process. (None is None: the name is free.)
        if getattr(main, name, None) is not _adopted.get(name):
            continue
        try:
            _adopted[name] = pickler.loads(pickled)
        except Exception as error:
            logger.debug("the class %s cannot be made here: %s", name, type(error).__name__)
        else:
            setattr(main, name, _adopted[name])
