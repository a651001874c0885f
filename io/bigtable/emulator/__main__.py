"""`python -m penstock.io.bigtable.emulator`: see `cli`."""

from penstock.io.bigtable.emulator.cli import main

if __name__ == "__main__":
    main()
