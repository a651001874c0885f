"""A local Bigtable with change streams: a front for Google's own emulator, which has none."""
