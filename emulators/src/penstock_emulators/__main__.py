"""`python -m penstock_emulators SERVICE`: the commands of `penstock emulator`, without the rest of Penstock's."""

from penstock_emulators.commands import emulator

if __name__ == "__main__":
    emulator(prog_name="python -m penstock_emulators")
