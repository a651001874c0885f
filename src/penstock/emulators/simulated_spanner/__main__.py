"""``python -m penstock.emulators.simulated_spanner`` starts the simulated service."""

from penstock.emulators.simulated_spanner.cli import main

if __name__ == "__main__":
    main()
