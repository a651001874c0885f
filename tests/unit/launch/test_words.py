"""Messages name settings as the user gives them."""

import pytest

from penstock.cli.common import words_of
from penstock.cli.resolve import resolve
from penstock.launch.words import command_words, program_words

WORDS = command_words(
    {
        "create_slot": "create_slot",
        "mode": "mode",
        "nullable_keys": "debezium.nullable_keys",
        "dead_letters": "dead_letters",
    },
    {"checkpoint_dir": "checkpoint-dir", "spark_master": "master"},
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("pass create_slot=True, or", "pass --set create_slot=true, or"),
        ("write the change log (mode='log')", "write the change log (--set mode=log)"),
        ("set --set mode=log.", "set --set mode=log."),
        ("to go on, set mode='log'", "to go on, --set mode=log"),
        ("use nullable_keys=True", "use --set debezium.nullable_keys=true"),
        ("host=db dbname=shop: other=True", "host=db dbname=shop: other=True"),
        ("SELECT f(failover => true, mode = 1)", "SELECT f(failover => true, mode = 1)"),
        ("give --checkpoint_dir another folder", "give --checkpoint-dir another folder"),
        ("--spark_master='local[1,4]'", "--master='local[1,4]'"),
        (
            "an error output (with_exception_handling), and",
            "an error output (--set dead_letters=FOLDER), and",
        ),
        ("take with_exception_handling() of the transform", "take --set dead_letters=FOLDER"),
    ],
)
def test_settings_are_named_as_the_command_takes_them(said: str, shown: str) -> None:
    assert WORDS(said) == shown
    assert program_words(said) == said


def test_the_words_of_a_job_know_its_parameters_and_the_options_of_formats() -> None:
    given = {"dsn": "dbname=shop", "publication": "p", "slot": "s", "output": "/o"}
    job = resolve(
        "postgres-to-files",
        [f"{name}={value}" for name, value in given.items()],
        {"checkpoint_dir": "/c"},
        {},
    )
    words = words_of(job)
    assert words("create_slot=True, nullable_keys=True, --drop_state NAME") == (
        "--set create_slot=true, --set debezium.nullable_keys=true, --drop-state NAME"
    )
