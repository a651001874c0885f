"""PostgreSQL's write-ahead log as a Beam source.

Modules whose names are not listed here are internal.
"""

from __future__ import annotations
