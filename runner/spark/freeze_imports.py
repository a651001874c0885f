"""Excludes imported modules from garbage collection in a Python worker.

PySpark 4.3 calls `gc.collect()` after every task (`daemon.manager`). With Beam imported that takes 50 CPU ms each time,
for modules that never become garbage, and it copies the memory pages that forked workers share.
"""

from __future__ import annotations

import gc
import sys

_modules_at_last_freeze = 0


def freeze_imports() -> None:
    """Exclude all objects that exist now from later collections, if modules were imported since the last call."""
    global _modules_at_last_freeze
    if len(sys.modules) != _modules_at_last_freeze:
        _modules_at_last_freeze = len(sys.modules)
        # Collect first: `gc.freeze` freezes all objects, and frozen garbage would stay until the process ends.
        gc.collect()
        gc.freeze()
