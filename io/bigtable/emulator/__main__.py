"""`python -m penstock.io.bigtable.emulator`: see `cli`."""

from penstock.io.bigtable.emulator.cli import main

main()
