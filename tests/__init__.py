"""Tests of Penstock. A regular package: an installed distribution (ydb) has a top-level package of this name too."""
