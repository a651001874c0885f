"""`python -m penstock.emulators.bigtable`: see `cli`."""

from penstock.emulators.bigtable.cli import main

if __name__ == "__main__":
    main()
