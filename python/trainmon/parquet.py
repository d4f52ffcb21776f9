# Runs as Parquet: one dataset, partitioned by kind and rank, clustered by tensor, then step.
"""`python -m trainmon.parquet RUN -o OUT`, which is what `trainmon convert --to parquet` runs.

The layout is for questions about some tensors over all steps. Each kind and rank has a file
(OUT/kind=grad_reduced/rank=3/part-0.parquet). In it the rows of one tensor stand side by side, in
order of steps. Floating-point columns are split into their bytes (BYTE_STREAM_SPLIT), whole
numbers are stored as differences, names in a dictionary, all of it compressed with zstd. Nothing
is rounded, unless --float32 asks for it. OUT/_declared.pq holds what the optimizers' groups said
(lr, ...).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

from trainmon import _core
from trainmon.arguments import (
    PARTIAL,
    USAGE,
    Reader,
    UsageError,
    add_selection,
    selection,
    taken,
    what_there_is,
)
from trainmon.base.names import as_valid
from trainmon.checks import arguments as checks
from trainmon.checks.selection import rank_numbers
from trainmon.reading import RowsByKind, RunTable, _checked_stats

ROW_GROUP = 122_880  # what DuckDB hands to one thread
LEVEL = 3  # of zstd; 9 saves 1 %
DECLARED = "_declared.pq"  # a name that patterns of datasets and engines pass over
LEFT_OUT = "histograms and texts have no columns: left out"
ORDER = ("name", "chunk", "element", "restart", "step", "attempt", "seq")

EXAMPLES = """\
examples:
  python -m trainmon.parquet runs/a -o a.parquet
  python -m trainmon.parquet runs/a -o grads.parquet --kind grads --stat norm --stat nans
  duckdb -c "SELECT max(norm) FROM read_parquet('a.parquet/**/*.parquet', hive_partitioning=true)"
"""


def columns(table: RunTable, float32: bool = False):
    """The rows of one kind and rank as a pyarrow.Table in the order of a file."""
    import numpy as np

    ranked = {name: _ranked(column) for name, column in table._columns.items()}
    order = np.lexsort([_codes(ranked[key]) for key in reversed(ORDER)])
    ordered = {}
    for name, column in ranked.items():
        is_text = isinstance(column, tuple)
        ordered[name] = (column[0][order], column[1]) if is_text else column[order]
    return _arrow(ordered, table.stats, float32)


def _arrow(ranked: dict, stats: Iterable[str], float32: bool):
    """Columns, texts as (codes, texts), as a pyarrow.Table. Numbers are not copied."""
    import numpy as np
    import pyarrow as pa

    out = {}
    for name, values in ranked.items():
        if name == "kind":  # in the name of the folder, as the rank will be
            continue
        if isinstance(values, tuple):
            out[name] = pa.DictionaryArray.from_arrays(
                pa.array(values[0]), pa.array(values[1], pa.string())
            )
            continue
        if values.dtype == np.uint32:
            values = values.view(np.int32)  # flags; Spark knows no unsigned numbers
        if float32 and name in stats and values.dtype == np.float64:
            values = _rounded(name, values)
        out[name] = pa.array(values)
    return pa.table(out)


def _codes(column):
    return column[0] if isinstance(column, tuple) else column


def _ranked(column):
    """Text as (codes, texts) with the texts sorted, valid UTF-8 and each there once."""
    if not isinstance(column, tuple):
        return column
    import numpy as np

    codes, texts = column
    valid = [as_valid(text) for text in texts]
    if not valid:
        return codes, []
    unique, place = np.unique(np.array(valid, dtype=object), return_inverse=True)
    return place.astype(np.int32)[codes], unique.tolist()


def _rounded(name: str, values):
    import numpy as np

    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    lost = np.isinf(small) & np.isfinite(values)
    if lost.any():
        raise UsageError(
            f"--float32: {name} has the value {values[lost][0]:g}, beyond what float32 holds"
        )
    return small


def write_file(tables: Iterable, path: Path) -> int:
    """One file of the dataset, of tables that follow one another: encodings, compression, order and
    row groups as promised. How many rows they have."""
    writer, rows = None, 0
    try:
        for table in tables:
            writer = writer or _writer(table.schema, path)
            writer.write_table(table, row_group_size=ROW_GROUP)
            rows += table.num_rows
            del table  # before the next one is made
    finally:
        if writer is not None:
            writer.close()
    return rows


def _writer(schema, path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, encodings = [], {}
    for field in schema:
        if pa.types.is_dictionary(field.type):
            texts.append(field.name)
        elif pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_uint64(field.type):  # a fingerprint: differences say nothing
            encodings[field.name] = "PLAIN"
        else:
            encodings[field.name] = "DELTA_BINARY_PACKED"
    return pq.ParquetWriter(
        path,
        schema.with_metadata({"trainmon": _core.__version__}),
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=texts,
        column_encoding=encodings,
        sorting_columns=pq.SortingColumn.from_ordering(
            schema, [(key, "ascending") for key in ORDER]
        ),
        write_page_index=True,
        store_schema=False,  # names are text to every reader, and no categories to pandas
    )


def write_dataset(
    run: str,
    out: str | os.PathLike,
    *,
    stats=None,
    float32: bool = False,
    overwrite: bool = False,
    reader: Reader | None = None,
    progress: bool = False,
    threads: int | None = None,
    **which,
) -> int:
    """Writes the rows of a run that `which` (arguments of read_table) selects; how many they were.

    All or nothing: the dataset is written beside `out` and renamed when it is whole. One kind of
    one rank is in memory at a time (one kind of all ranks where they are merged). The other rows
    of the rank lie in a file there that has no name. `threads` decode a rank, as of RowsByKind();
    the files do not depend on their number.
    """
    reader = reader or Reader("trainmon.parquet")
    out = Path(checks.path("out", os.path.abspath(out), is_utf8=True))  # which pyarrow asks for
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no directory")
    if Path(run).resolve() in out.resolve().parents:
        raise UsageError(f"the output {out} lies inside of what is converted")
    if threads is not None and which.get("merged"):
        raise UsageError("--threads: not with --merged, which takes all ranks at once")
    stats = _checked_stats(stats)
    show = _show if progress else None
    staging = _staged(_core.Staging, os.fsencode(out), overwrite)
    beside = Path(staging.path)
    try:
        beside.mkdir()
        merged = which.get("merged")
        write = _write_merged if merged else _write_ranks
        kept = {name: value for name, value in which.items() if merged or name != "merged"}
        if not merged:
            kept["threads"] = threads
        rows, there = write(run, {**kept, "stats": stats}, beside, float32, reader, show)
        if len(there.scalars["step"]):
            reader.remark(
                "what log() of the watch was given is left out (read_table(RUN).scalars has it)"
            )
        if rows == 0:
            raise UsageError(what_there_is(run, which, reader))
        write_declared(there.declared, beside / DECLARED)
        _staged(staging.publish)
    finally:
        staging.remove()
    return rows


def _staged(call, *arguments):
    try:
        return call(*arguments)
    except RuntimeError as error:
        raise UsageError(str(error)) from None


def write_declared(declared: dict, path: Path) -> None:
    """What the groups of optimizers said; a value is null where it is no number, as is a text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(declared["step"]) == 0:
        return
    out = {}
    for name, column in declared.items():
        absent = {"value": "number", "text": "text"}.get(name)
        mask = None if absent is None else declared["type"] != absent
        texts = column.dtype == object
        out[name] = pa.array([as_valid(t) for t in column] if texts else column, mask=mask)
    pq.write_table(pa.table(out), path, compression="zstd", compression_level=LEVEL)


def _write_ranks(run, which, beside, float32, reader, show) -> tuple[int, RunTable]:
    """Each rank is read once; how many rows there were, and what the run holds beside them."""
    apart = reader.heard(lambda: RowsByKind(run, beside, **which))

    def table_of(block: dict):
        ranked = {name: _ranked(column) for name, column in block.items() if name != "rank"}
        return _arrow(ranked, apart.stats, float32)

    ranks = rank_numbers(which.get("ranks")) or apart.facts.ranks
    rows = 0
    for number, rank in enumerate(ranks):
        if show:
            show(number, len(ranks), rows)
        for kind, blocks in reader.heard(lambda rank=rank: apart.of_rank(rank, ROW_GROUP)):
            rows += write_file(map(table_of, blocks), _part(beside, kind, rank))
    if show:
        show(len(ranks), len(ranks), rows, end="\n")
    if apart.payloads:
        reader.remark(LEFT_OUT)
    return rows, apart.facts


def _write_merged(run, which, beside, float32, reader, show) -> tuple[int, RunTable]:
    """Merging needs a kind of all ranks at once; results as of _write_ranks()."""
    import pyarrow.compute as pc

    # Beside rows a run is the same for every kind.
    nothing = {"include": ["no tensor is named\nso"], "stats": [], "merged": False}
    there = reader(run, **{**which, **nothing})
    kinds = taken(there.kinds, which.get("kinds"))
    rows = 0
    for number, kind in enumerate(kinds):
        if show:
            show(number, len(kinds), rows)
        table = reader(run, **{**which, "kinds": [kind]})
        if table.payloads:
            reader.remark(LEFT_OUT)
        if table.num_rows == 0:
            continue
        of_kind = columns(table, float32)
        ranks = of_kind["rank"]
        of_kind = of_kind.drop_columns(["rank"])
        for rank in sorted(pc.unique(ranks).to_pylist()):
            write_file([of_kind.filter(pc.equal(ranks, rank))], _part(beside, kind, rank))
        rows += table.num_rows
    if show:
        show(len(kinds), len(kinds), rows, end="\n")
    return rows, there


def _part(beside: Path, kind: str, rank: int) -> Path:
    folder = beside / f"kind={urllib.parse.quote(as_valid(kind), safe='')}" / f"rank={rank}"
    folder.mkdir(parents=True)
    return folder / "part-0.parquet"


def _show(done: int, total: int, rows: int, end: str = "") -> None:
    width = 30
    bar = "#" * (width * done // max(total, 1))
    print(f"\r[{bar:<{width}}] {done}/{total}  {rows:,} rows", end=end, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="trainmon.parquet",
        description="Writes the rows of a run as a Parquet dataset, partitioned by kind and rank.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_selection(made)
    made.add_argument("-o", "--out", required=True, metavar="OUT", help="directory to make")
    made.add_argument("--overwrite", action="store_true", help="replace OUT, if it is a dataset")
    made.add_argument(
        "--stat",
        "--stats",
        action="append",
        metavar="STAT",
        help="statistic (repeatable); default all",
    )
    made.add_argument(
        "--threads",
        type=int,
        choices=range(1, 129),
        metavar="N",
        help="threads that decode rows; without it as many as processors, at most 8",
    )
    made.add_argument(
        "--float32",
        action="store_true",
        help="round statistics to float32 (relative error 6e-8): a third smaller",
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    reader = Reader("trainmon.parquet", options.quiet)
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError:
        reader.say("Parquet needs pyarrow: pip install 'trainmon[parquet]'")
        return USAGE
    # A polite kill tidies up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows = reader.attempt(
        lambda: write_dataset(
            options.run,
            options.out,
            stats=options.stat,
            float32=options.float32,
            overwrite=options.overwrite,
            reader=reader,
            threads=options.threads,
            progress=sys.stderr.isatty() and not options.quiet,
            **selection(options),
        )
    )
    partial = " (partial: see above)" if reader.exit_code == PARTIAL else ""
    reader.remark(f"{rows:,} rows in {options.out}{partial}")
    return reader.exit_code


if __name__ == "__main__":
    sys.exit(main())
