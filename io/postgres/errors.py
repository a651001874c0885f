"""The errors of the PostgreSQL source. Pure."""

from __future__ import annotations

from penstock.errors import DecodeError

__all__ = ["DecodeError"]
