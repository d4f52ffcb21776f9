# SQL over a run, in SQLite's engine or in DuckDB's over a scan.
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.reading import _STATS, read_table
from trainmon.scanning import Scan, scan

ENGINES = ("sqlite", "duckdb")
MEMORY = "1GiB"  # of DuckDB, without files beside it
SETTINGS = {  # in this order; the last one keeps all of them
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "''",  # what does not fit in memory is refused as such
    "memory_limit": f"'{MEMORY}'",
    "disabled_filesystems": "'LocalFileSystem'",
    "lock_configuration": "true",
}
# What a statement is made of, as DuckDB's json_serialize_sql calls it; expressions have a class, too.
NODES = {
    *("SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"),
    *("BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "EXPRESSION_LIST", "TABLE_FUNCTION"),
    *("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"),
    *("ORDER_DEFAULT", "ASCENDING", "DESCENDING"),
}
TABLE_FUNCTIONS = {"range", "generate_series", "unnest"}
MACROS = {"nullif", "fmod", "geomean", "weighted_avg", "round_even", "count_if"}
TABLES = {
    "logged": ("restart", "rank", "step", "name", "value"),
    "declared": ("restart", "rank", "step", "optimizer", "param_group", "name", "value", "type"),
    "alerts": (
        *("restart", "rank", "rule", "kind", "name", "element", "step", "stat"),
        *("value", "expected", "count", "message"),
    ),
    "gaps": ("restart", "rank", "reason", "rows", "first_seq", "last_seq"),
}
REALS, TEXTS = {"value", "expected"}, {"name", "type", "rule", "kind", "element", "stat", "message"}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What query() found: names of columns, and rows of None, int, float and str."""

    columns: tuple[str, ...]
    rows: list[tuple]


def query(
    run: str | os.PathLike,
    sql: str,
    *,
    engine: str = "sqlite",
    all_restarts: bool = False,
    timeout: float = 3600.0,
) -> Answer:
    """The answer to one SELECT over the rows of a run, as `trainmon query` gives it. The tables are
    stats (also named rows), samples (of SQLite alone), logged, declared, alerts and gaps
    (docs/formats.md). NaN is NULL.

    run      a run directory; for sqlite a stats.db, too
    engine   sqlite, or duckdb: its dialect, over a scan of the run; needs `pip install duckdb`
    all_restarts  also rows of steps that a later restart went through again
    timeout  seconds that the statement may take; 0: any

    Statements read and compute: files, extensions, settings and functions that do more are refused.
    DuckDB may take 1 GiB. Its `declared.value` is NULL for texts, and what is no UTF-8 is escaped.
    Raises ValueError for SQL that is wrong or does more, or takes too long, ModuleNotFoundError
    without duckdb; else errors as for read().

    >>> asked = "SELECT sum(nans) AS bad FROM stats WHERE kind = 'grad_reduced' AND step = 12"
    >>> trainmon.query("trainmon_runs/local", asked)
    Answer(columns=('bad',), rows=[(577,)])
    """
    checks.choice("engine", engine, ENGINES)
    if not isinstance(sql, str):
        raise TypeError(f"sql must be a str, not {type(sql).__name__}")
    path = checks.path("run", run)
    flag = checks.flag("all_restarts", all_restarts)
    seconds = checks.seconds("timeout", timeout)
    if engine == "duckdb":
        return _ask_duckdb(path, sql, flag, seconds)
    try:
        names, rows, lacks, damage = _core.query(os.fsencode(path), sql, flag, seconds)
    except RuntimeError as error:
        raise FileNotFoundError(f"run: {error}") from None
    for what in [*lacks, *(f"{file} at byte {at}: {text}" for file, at, text in damage)]:
        warnings.warn(what, RuntimeWarning, stacklevel=2)
    return Answer(tuple(names), rows)


def _ask_duckdb(path: str, sql: str, all_restarts: bool, seconds: float) -> Answer:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "engine: duckdb is not installed: pip install duckdb", name="duckdb"
        ) from None
    with duckdb.connect(":memory:") as database:
        try:
            statement = _checked(database, sql)
            _add_tables(database, path, statement, all_restarts)
            for name, value in SETTINGS.items():
                database.sql(f"SET {name} = {value}")
            return _carry_out(database, sql, seconds)
        except duckdb.InterruptException:
            raise ValueError("SQL: it took longer than it may; timeout gives it more") from None
        except duckdb.Error as error:
            raise ValueError(f"SQL: {error}") from None


def _carry_out(database: Any, sql: str, seconds: float) -> Answer:
    limit = threading.Timer(seconds, database.interrupt)
    limit.daemon = True
    if seconds > 0:
        limit.start()
    try:
        answer = database.execute(sql)
        rows = answer.fetchall()
        return Answer(tuple(column[0] for column in answer.description), rows)
    finally:
        limit.cancel()


def _dicts(node: Any) -> Iterator[dict]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _dicts(part)


def _checked(database: Any, sql: str) -> dict:
    """The statement as DuckDB's parser has it. ValueError where it does more than read and compute:
    what is not known to do no more is refused."""
    ((text,),) = database.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"]:
        raise ValueError(f"SQL: {parsed['error_message']}")
    if len(parsed["statements"]) != 1:
        raise ValueError(f"SQL: one statement only, not {len(parsed['statements'])}")
    computing = {
        name
        for (name,) in database.sql(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE internal AND "
            "function_type IN ('scalar', 'aggregate', 'window') AND stability = 'CONSISTENT'"
        ).fetchall()
    }
    (statement,) = parsed["statements"]
    named = {entry["key"].lower() for one in _dicts(statement) for entry in _ctes(one)}
    for one in _dicts(statement):
        if "class" not in one and isinstance(one.get("type"), str) and one["type"] not in NODES:
            raise ValueError(f"SQL: {one['type']} is not allowed; only SELECT is")
        if one.get("type") == "TABLE_FUNCTION":
            function = str(one["function"].get("function_name")).lower()
            if function not in TABLE_FUNCTIONS:
                raise ValueError(f"SQL: {function} is no table of a run")
        elif one.get("type") == "BASE_TABLE":
            name = str(one["table_name"]).lower()
            path = [one.get("catalog_name"), one.get("schema_name")]
            if any(path) or name not in {"stats", "rows", *TABLES, *named}:
                raise ValueError(f"SQL: there is no table {one['table_name']} in a run")
        name = str(one.get("function_name", "")).lower()
        if name and name not in computing | TABLE_FUNCTIONS | MACROS:
            raise ValueError(f"SQL: {name} is not among the functions that only compute")
    return statement


def _statistics(statement: dict) -> list[str]:
    """Those that the statement may read: whatever it names; all where it need not name them."""
    columns = [one for one in _dicts(statement) if one.get("type") == "COLUMN_REF"]
    names = {str(part).lower() for one in columns for part in one["column_names"]}
    names |= {
        str(name).lower() for one in _dicts(statement) for name in one.get("using_columns", [])
    }
    unnamed = any(
        one.get("type") in ("STAR", "POSITIONAL_REFERENCE") or one.get("column_name_alias")
        for one in _dicts(statement)
    )
    tables = {"stats", "rows"}
    tables |= {str(one["alias"]).lower() for one in _dicts(statement) if "table_name" in one}
    last = {str(one["column_names"][-1]).lower() for one in columns}
    natural = any(one.get("ref_type") == "NATURAL" for one in _dicts(statement))
    if unnamed or natural or last & tables:  # a table as a column is a struct of all
        return list(_STATS)
    return [name for name in _STATS if name in names]


def _asked(statement: dict) -> dict:
    """Conditions on rank, kind and step as arguments of scan(). A single SELECT that reads the
    rows once gives those that hold for every row it takes. DuckDB looks at every row again."""
    reads = [
        one for one in _dicts(statement) if one.get("table_name", "").lower() in ("stats", "rows")
    ]
    node = statement.get("node", {})
    from_table = node.get("from_table") or {}
    if len(reads) != 1 or from_table is not reads[0] or _ctes(node):
        return {}
    if from_table.get("sample") or node.get("sample") or from_table.get("column_name_alias"):
        return {}  # a sample is one of all rows; an alias may give a column the name of another
    asked: dict[str, Any] = {}
    low = high = None
    for name, kind, value in _conditions(node.get("where_clause")):
        if name == "kind" and kind == "=" and isinstance(value, str) and value:
            asked["kinds"] = value
        if type(value) is not int or not -(2**31) <= value < 2**31:
            continue
        if name == "rank" and kind == "=" and value >= 0:
            asked["ranks"] = value
        if name == "step" and kind in "=>":
            low = value if low is None else max(low, value)
        if name == "step" and kind in "=<":
            high = value if high is None else min(high, value)
    if low is not None and high is not None:
        high = max(low, high)  # DuckDB itself leaves nothing of an empty range
    if low is not None or high is not None:
        asked["steps"] = (low, high)
    return asked


def _conditions(where: Any) -> Iterator[tuple[str, str, Any]]:
    """(column, "=", ">" or "<", value) of what AND joins; a bound itself counts as within."""
    signs = {
        "COMPARE_EQUAL": "=",
        "COMPARE_GREATERTHAN": ">",
        "COMPARE_GREATERTHANOREQUALTO": ">",
        "COMPARE_LESSTHAN": "<",
        "COMPARE_LESSTHANOREQUALTO": "<",
    }
    where = where or {}
    if where.get("type") == "CONJUNCTION_AND":
        for one in where["children"]:
            yield from _conditions(one)
    elif where.get("type") == "COMPARE_BETWEEN":
        yield _name(where["input"]), ">", _constant(where["lower"])
        yield _name(where["input"]), "<", _constant(where["upper"])
    elif where.get("type") in signs:
        sign = signs[where["type"]]
        yield _name(where["left"]), sign, _constant(where["right"])
        other = {"<": ">", ">": "<"}.get(sign, sign)
        yield _name(where["right"]), other, _constant(where["left"])


def _name(one: dict) -> str:
    return str(one["column_names"][-1]).lower() if one.get("type") == "COLUMN_REF" else ""


def _constant(one: dict) -> Any:
    literal = one.get("literal") or {}
    if literal.get("kind") == "INTEGER":
        return int(literal["text"])
    return literal["text"] if literal.get("kind") == "STRING" else None


def _ctes(one: dict) -> list[dict]:
    return one["cte_map"]["map"] if "cte_map" in one else []


def _add_tables(database: Any, path: str, statement: dict, all_restarts: bool) -> None:
    names = {str(one["table_name"]).lower() for one in _dicts(statement) if "table_name" in one}
    if names & {"stats", "rows"}:
        which = {"stats": _statistics(statement), "all_restarts": all_restarts}
        asked = _asked(statement)
        try:
            rows = scan(path, **which, **asked)
        except ValueError:  # of a kind that the run does not have no row is asked for
            asked.pop("kinds", None)
            rows = scan(path, **which, **asked)
        database.register("trainmon_scan", rows)
        for name in ("stats", "rows"):
            database.sql(f'CREATE VIEW "{name}" AS {_as_sql(database, rows)}')
    if names & TABLES.keys():
        facts = read_table(
            path, include="no tensor is named\nso", stats=[], all_restarts=all_restarts
        )
        for name in names & TABLES.keys():
            _add_table(database, name, getattr(facts, "scalars" if name == "logged" else name))


def _as_sql(database: Any, rows: Scan) -> str:
    """SQL that gives the columns of a scan as they are in SQL. Whole numbers have 64 bits; NULL
    stands for what is not known and for NaN."""
    columns = []
    for name, kind, *_ in database.sql("SELECT * FROM trainmon_scan LIMIT 0").description:
        kind = str(kind)
        if kind == "DOUBLE":
            columns.append(f"""nullif("{name}", 'nan'::DOUBLE) AS "{name}\"""")
        elif name == "shape":
            columns.append("nullif(shape, '') AS shape")
        elif kind in ("INTEGER", "UINTEGER"):
            columns.append(f'"{name}"::BIGINT AS "{name}"')
        else:
            columns.append(f'"{name}"')
    return f"SELECT {', '.join(columns)} FROM trainmon_scan"


def _add_table(database: Any, name: str, found: Any) -> None:
    """A table of facts: of columns, or of a dict for each record."""
    import numpy as np

    columns = {}
    for column in TABLES[name]:
        values = found[column] if isinstance(found, dict) else [one[column] for one in found]
        if column in REALS:
            columns[column] = np.asarray(values, np.float64)
        elif column in TEXTS or column == "reason":
            columns[column] = np.array([*map(_valid, values), ""], object)[:-1]
        else:
            columns[column] = np.asarray(values, np.int64)
    database.register("trainmon_facts", columns)
    types = [
        "DOUBLE" if c in REALS else "VARCHAR" if c in TEXTS or c == "reason" else "BIGINT"
        for c in columns
    ]
    of = [
        f"nullif({c}::DOUBLE, 'nan') AS {c}" if t == "DOUBLE" else f'"{c}"::{t} AS "{c}"'
        for c, t in zip(columns, types, strict=True)
    ]
    database.sql(f"CREATE TABLE {name} AS SELECT {', '.join(of)} FROM trainmon_facts")
    database.unregister("trainmon_facts")


def _valid(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    """A value of DuckDB as JSON has it. NULL stands for NaN, an object for an infinity, text for
    all that is neither a number nor a text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):  # a bool, too
        return int(value) if -(2**63) <= value < 2**63 else float(value)
    if isinstance(value, Decimal):
        return _cell(int(value)) if value == value.to_integral_value() else float(value)
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else {"real": str(value)}


def main(arguments: list[str] | None = None) -> int:
    """What `trainmon query --engine duckdb` runs: an answer of DuckDB as lines of JSON. The first is
    {"columns": names}, then comes a list for each row, and {"lacks": sentences} at the end; or
    {"error": text}."""
    parser = argparse.ArgumentParser(prog="trainmon.querying", description=main.__doc__)
    parser.add_argument("run")
    parser.add_argument("sql")
    parser.add_argument("--all-restarts", action="store_true")
    parser.add_argument("--timeout", type=float, default=3600.0)
    asked = parser.parse_args(arguments)

    def put(line: Any) -> None:
        print(json.dumps(line, allow_nan=False), flush=False)

    try:
        with warnings.catch_warnings(record=True) as lacks:
            warnings.simplefilter("always")
            answer = query(
                asked.run,
                asked.sql,
                engine="duckdb",
                all_restarts=asked.all_restarts,
                timeout=asked.timeout,
            )
    except (ValueError, OSError, ModuleNotFoundError) as error:
        put({"error": str(error)})
        return 0
    put({"columns": answer.columns})
    for row in answer.rows:
        put([_cell(value) for value in row])
    put({"lacks": [str(one.message) for one in lacks]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
