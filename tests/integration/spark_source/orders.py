"""A PostgreSQL table `orders` with few keys, whose rows are written, deleted and moved to other keys."""

from __future__ import annotations

import random
from typing import Any

import psycopg


def change_a_row(session: psycopg.Connection[Any], draw: random.Random, number: int) -> None:
    """Write, delete or move a row of a few keys."""
    one, other = draw.sample(range(12), 2)
    match draw.randrange(4):
        case 0:
            session.execute('delete from orders where "Id" = %s', (one,))
        case 1 | 2:
            upsert = 'on conflict ("Id") do update set "Value" = excluded."Value"'
            session.execute(f"insert into orders values (%s, %s) {upsert}", (one, f"n{number}"))
        case _:
            free = 'not exists (select from orders where "Id" = %s)'
            session.execute(f'update orders set "Id" = %s where "Id" = %s and {free}', (other, one, other))
