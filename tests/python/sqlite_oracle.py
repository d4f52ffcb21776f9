"""The rows of a run in a database of Python's own sqlite3."""

from __future__ import annotations

import sqlite3

import trainmon

TEXTS = ("kind", "name", "element", "fate", "dtype", "replication", "shape")


def database_of(run) -> sqlite3.Connection:
    """Its table `stats` has what read_table() gives."""
    database = sqlite3.connect(":memory:")
    table = trainmon.read_table(run).to_pandas()
    table.astype(dict.fromkeys(TEXTS, object)).to_sql("stats", database, index=False)
    return database
