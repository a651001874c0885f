"""What workers keep out of the collector's sight.

PySpark collects garbage after every task. With Beam imported that is 50 CPU ms each time, for modules that never
become garbage, and it copies the memory pages that forked workers share.
"""

from __future__ import annotations

import gc
import sys

_settled = 0


def settle() -> None:
    """Take what is alive now out of all collections to come, if modules have been imported since the last time."""
    global _settled
    if len(sys.modules) != _settled:
        _settled = len(sys.modules)
        gc.collect()
        gc.freeze()
