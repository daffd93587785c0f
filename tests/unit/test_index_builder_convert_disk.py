"""A table on the disk takes no memory, and says in one line when there is no room."""

import sqlite3

import pytest

from polyrank.index_builder.convert.disk import table_on_disk


def fill() -> None:
    with table_on_disk() as table:
        table.execute("CREATE TABLE t (x TEXT)")
        table.execute("PRAGMA max_page_count = 10")
        for _ in range(100):
            table.execute("INSERT INTO t VALUES (?)", ("x" * 4000,))


def test_a_full_disk_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="disk is full"):
        fill()


def test_it_is_gone_afterwards() -> None:
    with table_on_disk() as table:
        table.execute("CREATE TABLE t (x TEXT)")
    with pytest.raises(sqlite3.ProgrammingError):
        table.execute("SELECT * FROM t")
