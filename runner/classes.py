"""The classes of the user's own `__main__`, for workers, where `__main__` is another program.

What is pickled names its class by module and name. In a notebook or a script that module is `__main__`, and
Beam's coder of last resort pickles elements so: a worker could neither read nor write them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from apache_beam.internal import pickler

logger = logging.getLogger(__name__)

_MAIN = "__main__"
_adopted: dict[str, type] = {}
"""What this process has put into its `__main__`."""


def of_main() -> dict[str, bytes]:
    """The classes that `__main__` defines, pickled by value; those that cannot be are left out."""
    found = {}
    for name, each in list(vars(sys.modules[_MAIN]).items()):
        if isinstance(each, type) and each.__module__ == _MAIN:
            try:
                found[name] = pickler.dumps(each)
            except Exception as error:
                logger.debug("the class %s stays with the driver: %s", name, type(error).__name__)
    return found


def adopt(classes: Mapping[str, bytes]) -> None:
    """Put classes into `__main__`, where they take the place of earlier ones of the user's, but of nothing else."""
    main = sys.modules[_MAIN]
    for name, pickled in classes.items():
        if getattr(main, name, None) is not _adopted.get(name):
            continue
        try:
            _adopted[name] = pickler.loads(pickled)
        except Exception as error:
            logger.debug("the class %s cannot be made here: %s", name, type(error).__name__)
        else:
            setattr(main, name, _adopted[name])
