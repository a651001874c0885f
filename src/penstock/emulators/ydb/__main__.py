"""``python -m penstock.emulators.ydb`` starts the test service."""

from penstock.emulators.ydb.cli import main

if __name__ == "__main__":
    main()
