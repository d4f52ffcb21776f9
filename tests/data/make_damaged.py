"""Makes tests/data/damaged again: damaged files for every reader, and what readers must say of each.

    python tests/data/make_damaged.py            the damaged files, from those in damaged/base
    python tests/data/make_damaged.py --base     damaged/base first, with trainmon's own sinks

What is expected follows from how a file was damaged, never from what a reader answered. Numbers
that a bit flip turns into other valid numbers in CSV and SQLite are beyond any reader: those files
hold no checksums. Only the log does.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import struct
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE / "damaged"
BASE = OUT / "base"
NAMES = ("fc1.weight", "fc1.bias", "fc2.weight")
WINDOWS = 8
ROWS = WINDOWS * len(NAMES)

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc000000301010018dd8db00000000049454e44ae426082"
)
FOREIGN = {
    "empty": b"",
    "nul": b"\0" * 512,
    "png": PNG,
    "gzip": gzip.compress(b"step,loss\n0,1.5\n" * 20, mtime=0),
}


def make_base() -> None:
    """A run of one rank with the sinks log, csv and sqlite; the rest by hand."""
    sys.path.insert(0, str(HERE.parent / "python"))
    import numpy as np

    from written_run import WrittenRank

    shutil.rmtree(BASE, ignore_errors=True)
    BASE.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        sinks = ["log", "csv", "sqlite"]
        rank = WrittenRank(Path(scratch) / "run", sinks=sinks, segment_mb=0.002)
        rng = np.random.default_rng(11)
        for window in range(WINDOWS):
            for name in NAMES:
                rank.observe(rng.normal(size=8).astype(np.float32), "grad_reduced", name, window)
            rank.monitor.add_scalar("loss", window * 0.5)
            rank.end_step()
        rank.stop()
        for file in sorted(rank.directory.iterdir()):
            shutil.copyfile(file, BASE / file.name)
    first, *others = sorted(BASE.glob("rows-*.csv"))  # one file is enough
    for other in others:
        first.write_bytes(first.read_bytes() + other.read_bytes().split(b"\n", 1)[1])
        other.unlink()
    run = json.loads((BASE / "run.json").read_text())
    run |= {"host": "host", "pid": 1, "started": "2026-01-31T23:59:59Z"}
    run["config"]["out"] = "run"
    (BASE / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    shrink_database(BASE / "stats.db")


def shrink_database(path: Path) -> None:
    """Small pages, so that one damaged page is not the whole database."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA page_size = 512")
        database.execute("VACUUM")
    database.close()


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


class Corpus:
    def __init__(self):
        self.cases = {}

    def add(self, reader: str, name: str, files: dict, **expected) -> None:
        """`files`: where in the directory that is read -> bytes, None for a directory there."""
        stored = {}
        for place, data in files.items():
            path = f"{reader}/{name}" + (f".{place}" if len(files) > 1 else Path(place).suffix)
            stored[place] = None if data is None else path
            if data is not None:
                (OUT / path).parent.mkdir(parents=True, exist_ok=True)
                (OUT / path).write_bytes(data)
        self.cases.setdefault(reader, {})[name] = {"files": stored, **expected}

    def write(self) -> None:
        text = json.dumps(self.cases, indent=1, sort_keys=True)
        (OUT / "expected.json").write_text(text + "\n")


# --- the log --------------------------------------------------------------------------------------
def frames_of(data: bytes) -> list[bytes]:
    """The frames of a sound segment (docs/formats.md)."""
    frames, at = [], 16
    while at < len(data):
        size = 28 + struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at : at + size])
        at += size
    return frames


def log_cases(corpus: Corpus) -> None:
    import hostile_logs
    import log_decoder  # of tests/python: written from docs/formats.md alone

    segments = sorted(BASE.glob("log-*.tmlog"))
    first_name, last_name = segments[0].name, segments[-1].name
    first, last = segments[0].read_bytes(), segments[-1].read_bytes()
    rows_in = {path.name: [] for path in segments}
    for path in segments:
        batches = iter(log_decoder.decode(path.read_bytes()).batches)
        for frame in frames_of(path.read_bytes()):
            rows_in[path.name].append(len(next(batches)["rows"]) if frame[4] == 3 else 0)
    of_first, of_last = sum(rows_in[first_name]), sum(rows_in[last_name])
    assert sum(map(sum, rows_in.values())) == ROWS and of_first and of_last
    head, frames = first[:16], frames_of(first)
    end_of = [16 + sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    data_frames = [i for i, rows in enumerate(rows_in[first_name]) if rows]

    def add(name, files, lost, says, **more):
        # Every command says where: the run was stopped in order and health.json knows its rows.
        # For `doctor` a log that ends early, soundly, is no damage but books that do not add up.
        codes = {"convert": 3, "show": 3, "doctor": 1 if says == "health.json says" else 3}
        if not says:
            codes = dict.fromkeys(codes, 0)
        corpus.add("log", name, files, written=ROWS - lost, says=says, exit=codes, **more)

    cut = len(last) - len(frames_of(last)[-1]) // 2
    lost = rows_in[last_name][-1]
    add(
        "truncated_in_the_last_frame",
        {last_name: last[:cut]},
        lost,
        "health.json says" if lost else "",
    )
    whole = [i for i, rows in enumerate(rows_in[last_name]) if rows]
    keep = 16 + sum(map(len, frames_of(last)[: whole[-1]]))
    add(
        "truncated_between_frames",
        {last_name: last[:keep]},
        rows_in[last_name][whole[-1]],
        "health.json says",
    )
    add("truncated_in_the_first_bytes", {last_name: last[:10]}, of_last, "health.json says")
    middle = data_frames[len(data_frames) // 2]
    lost = sum(rows_in[first_name][middle:])
    add(
        "truncated_in_the_middle",
        {first_name: first[: end_of[middle] - 9]},
        lost,
        "bytes are missing at the end",
    )
    add("first_segment_missing", {first_name: b""}, of_first, "bytes are missing at the end")
    add("last_segment_missing", {last_name: b""}, of_last, "health.json says")

    add("bitflip_in_the_preamble", {first_name: flipped(first, 3)}, 0, "first bytes are not those")
    at = end_of[middle] - 5
    add(
        "bitflip_in_a_payload",
        {first_name: flipped(first, at, 6)},
        rows_in[first_name][middle],
        "fail their checksum",
    )
    at = end_of[middle - 1] + 17
    add(
        "bitflip_in_a_frame_header",
        {first_name: flipped(first, at, 2)},
        rows_in[first_name][middle],
        "fail their checksum",
    )
    at = len(last) - 1
    lost = rows_in[last_name][-1]
    add("bitflip_at_the_end", {last_name: flipped(last, at, 7)}, lost, "fail their checksum")

    twice = head + b"".join(frames[: middle + 1]) + b"".join(frames[middle:])
    # The next segment says where this one ends, and what follows there does not count.
    add("frame_twice", {first_name: twice}, rows_in[first_name][-1], "repeated or out of order")
    order = [*frames[:middle], frames[data_frames[-1]], *frames[middle:]]
    del order[data_frames[-1] + 1]
    add("frames_out_of_order", {first_name: head + b"".join(order)}, 0, "repeated or out of order")
    add(
        "segments_with_names_swapped",
        {first_name: last, last_name: first},
        of_first + of_last,
        "does not belong here",
    )
    add("segment_under_two_names", {"log-000099.tmlog": first}, 0, "does not belong here")

    add("major_version_2", {first_name: first[:12] + b"\2\0" + first[14:]}, 0, "format version 2")
    add("minor_version_7", {first_name: first[:14] + b"\7\0" + first[16:]}, 0, "")
    add("big_endian", {first_name: first[:8] + first[11:7:-1] + first[12:]}, 0, "byte order")
    for name, data in FOREIGN.items():
        if name != "empty":
            add(f"foreign_{name}", {first_name: data}, of_first, first_name)
    add("directory", {first_name: None}, of_first, first_name)

    # A frame behind the last that unpacks to far more than it is.
    for name in ("rows", "rows_of_many_windows", "gaps", "alerts", "outcomes", "text", "claim"):
        (hostile,) = hostile_logs.frames(name, len(frames_of(last)))
        says = "can hold" if name in ("text", "claim", "outcomes") else "more records than"
        add(f"hostile_{name}", {last_name: last + hostile}, 0, says)


# --- CSV of ours ----------------------------------------------------------------------------------
def csv_cases(corpus: Corpus) -> None:
    place = "rows-000000.csv"
    text = (BASE / place).read_bytes()
    lines = text.splitlines(keepends=True)
    assert len(lines) == ROWS + 1

    def add(name, data, written, rejected=(), says="", **more):
        """`rejected`: lines, from 1."""
        code = 3 if rejected or says else 0
        corpus.add(
            "csv",
            name,
            {place: data},
            written=written,
            lines=sorted(rejected),
            says=says,
            exit={"convert": code},
            **more,
        )

    def with_line(number, line):
        return b"".join([*lines[: number - 1], line, *lines[number:]])

    every_line = range(2, ROWS + 2)
    add("sound", text, ROWS)
    add("truncated_in_a_line", text[:-20], ROWS - 1, [ROWS + 1], "the line does not end")
    add("truncated_at_a_line", b"".join(lines[:10]), 9, [], "health.json says")
    add("truncated_in_the_header", text[:40], 0, [1], "no first line")
    add("bitflip_in_the_header", text.replace(b",seq,", b",sep,", 1), 0, every_line, "seq")
    add(
        "bitflip_in_a_dtype",
        with_line(8, lines[7].replace(b"float32", b"flnat32")),
        ROWS - 1,
        [8],
        "dtype 'flnat32'",
    )
    add(
        "bitflip_in_a_comma", with_line(9, lines[8].replace(b",", b"-", 1)), ROWS - 1, [9], "fields"
    )
    add("bitflip_in_a_quote", with_line(6, lines[5].replace(b",", b',"', 3)), ROWS - 1, [6], "line")
    add("bitflip_in_the_last_line_end", text[:-1] + b"\x0b", ROWS - 1, [ROWS + 1], "does not end")
    add(
        "bitflip_joins_two_lines",
        with_line(5, lines[4][:-1] + b"\x0b"),
        ROWS - 2,
        [5],
        "fields",
        rows_lost_unseen=1,
    )
    at = text.index(lines[3]) + lines[3].index(b"float32,independent,") + 22
    assert chr(text[at]) in ".0123456789"
    digit = bytes([text[at] ^ 1]) if chr(text[at]).isdigit() else b"7"
    add("bitflip_in_a_digit", text[:at] + digit + text[at + 1 :], ROWS, other_values=1)
    cells = lines[3].split(b",")
    add(
        "bitflip_in_a_number",
        with_line(4, b",".join([*cells[:20], b"x" + cells[20], *cells[21:]])),
        ROWS - 1,
        [4],
        "is no number",
    )
    add(
        "integer_beyond_32_bits",
        with_line(4, b",".join([*cells[:8], b"4294967296", *cells[9:]])),
        ROWS - 1,
        [4],
        "attempt",
    )
    add(
        "nul_bytes_in_a_line",
        with_line(7, b"\0" * len(lines[6][:-1]) + b"\n"),
        ROWS - 1,
        [7],
        "NUL",
    )
    add("line_twice", b"".join([*lines[:5], lines[4], *lines[5:]]), ROWS, [6], "there before")
    add(
        "lines_twice",
        b"".join([*lines[:9], *lines[3:9], *lines[9:]]),
        ROWS,
        range(10, 16),
        "there before",
    )
    add("lines_out_of_order", b"".join([lines[0], *lines[:0:-1]]), ROWS)
    cut = b"".join(b",".join(line.split(b",")[:-2]) + b"\n" for line in lines)
    add("an_older_header", cut, ROWS, absent=["std", "count"])
    longer = b"".join(
        line[:-1] + b"," + (b"hash" if i == 0 else b"1") + b"\n" for i, line in enumerate(lines)
    )
    add("a_later_header", longer, ROWS)
    without = b"".join(b",".join(line.split(b",")[:11] + line.split(b",")[12:]) for line in lines)
    add("header_without_seq", without, 0, every_line, "seq")
    twice = b"".join(
        line[:-1] + b"," + (b"norm" if i == 0 else b"1") + b"\n" for i, line in enumerate(lines)
    )
    add("column_twice", twice, 0, every_line, "norm")
    add("header_between_lines", b"".join([*lines[:6], lines[0], *lines[6:]]), ROWS, [7], "is none")
    add("carriage_returns", text.replace(b"\n", b"\r\n"), ROWS)
    add("other_columns", b"time,loss\n1,0.5\n2,0.4\n", 0, [2, 3], "no column")
    for name, data in FOREIGN.items():
        corpus.add(
            "csv", f"foreign_{name}", {place: data}, written=0, says=place, exit={"convert": 3}
        )
    corpus.add("csv", "directory", {place: None}, written=0, says=place, exit={"convert": 3})


# --- SQLite of ours -------------------------------------------------------------------------------
def sqlite_cases(corpus: Corpus) -> None:
    place = "stats.db"
    sound = (BASE / place).read_bytes()

    def add(name, data, written, says, **more):
        code = more.pop("code", 3 if says else 0)
        corpus.add(
            "sqlite",
            name,
            {place: data},
            written=written,
            says=says,
            exit={"convert": code},
            **more,
        )

    def changed(*statements):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / place
            path.write_bytes(sound)
            database = sqlite3.connect(path)
            database.executescript(";".join(statements) + ";")
            database.close()
            return path.read_bytes()

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / place
        path.write_bytes(sound)
        database = sqlite3.connect(path)
        root = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'rows'"
        ).fetchone()[0]
        database.close()
    page = (root - 1) * 512
    # None: which rows are before the damage depends on SQLite; those that come are right.
    add("sound", sound, ROWS, "")
    add("truncated_in_the_header", sound[:60], None, place, code=2)
    add("truncated_in_the_middle", sound[: len(sound) // 2], None, place, code=[2, 3])
    add("truncated_at_the_end", sound[:-700], None, place, code=[2, 3])
    add("bitflip_in_the_magic", flipped(sound, 2), None, place, code=2)
    add("bitflip_in_the_root_page_of_rows", flipped(sound, page, 3), None, place, code=[2, 3])
    add(
        "bitflip_in_the_schema",
        sound.replace(b"CREATE VIEW stats", b"CREATE VIEW stbts", 1),
        None,
        place,
        code=2,
    )
    leaves = [at for at in range(0, len(sound), 512) if sound[at] == 13 and at > page]
    add("bitflip_in_a_leaf_page", flipped(sound, leaves[-1], 2), None, place, code=[0, 2, 3])
    add("user_version_2", changed("PRAGMA user_version = 99"), None, "version 99", code=[2, 3])
    add("another_application", changed("PRAGMA application_id = 7"), None, place, code=[2, 3])
    add(
        "column_missing",
        changed("ALTER TABLE rows RENAME COLUMN seq TO sequence"),
        None,
        "seq",
        code=[2, 3],
    )
    add(
        "rows_twice",
        changed("INSERT INTO rows SELECT * FROM rows WHERE seq < 4"),
        ROWS,
        "there before",
        rejected=3,
    )
    add(
        "text_for_a_number",
        changed("UPDATE rows SET norm = 'abc' WHERE seq = 5"),
        ROWS - 1,
        "norm",
        rejected=1,
    )
    add(
        "series_missing",
        changed("DELETE FROM series WHERE name = 'fc1.bias'"),
        ROWS - WINDOWS,
        "series",
        rejected=WINDOWS,
    )
    for name, data in FOREIGN.items():
        add(f"foreign_{name}", data, None, place, code=[2, 3])
    corpus.add(
        "sqlite", "directory", {place: None}, written=None, says=place, exit={"convert": [2, 3]}
    )


# --- msprobe's CSV --------------------------------------------------------------------------------
def msprobe_cases(corpus: Corpus) -> None:
    place = "grad_reduced_0-7.csv"
    lines = [b"vpp_stage,name,step,norm,mean\n"]
    for step in range(WINDOWS):
        for i, name in enumerate(NAMES):
            lines.append(f"0,{name},{step},{step + 0.25 * i!r},{-0.5 * step!r}\n".encode())
    text = b"".join(lines)

    def add(name, data, written, rejected=(), says="", **more):
        corpus.add(
            "msprobe",
            name,
            {place: data},
            written=written,
            lines=sorted(rejected),
            says=says,
            exit={"convert": 3 if rejected or says else 0},
            **more,
        )

    def with_line(number, line):
        return b"".join([*lines[: number - 1], line, *lines[number:]])

    add("sound", text, ROWS)
    add("truncated_in_a_line", text[:-3], ROWS - 1, [ROWS + 1], "the line does not end")
    add("truncated_in_the_header", text[:12], 0, [1], "first line")
    add("bitflip_in_the_header", text.replace(b",step,", b",rtep,", 1), 0, [1], "step")
    add(
        "bitflip_in_a_step",
        with_line(6, lines[5].replace(b",1,", b",q,")),
        ROWS - 1,
        [6],
        "step 'q'",
    )
    add(
        "step_outside_the_file",
        with_line(6, lines[5].replace(b",1,", b",9,")),
        ROWS - 1,
        [6],
        "does not belong",
    )
    add("bitflip_in_a_number", with_line(6, lines[5].replace(b".", b"n", 3)), ROWS - 1, [6], "")
    add(
        "bitflip_in_a_comma", with_line(6, lines[5].replace(b",", b"l", 1)), ROWS - 1, [6], "fields"
    )
    add("line_twice", b"".join([*lines[:5], lines[4], *lines[5:]]), ROWS, [6], "there before")
    add(
        "lines_twice",
        b"".join([*lines[:7], *lines[3:7], *lines[7:]]),
        ROWS,
        range(8, 12),
        "there before",
    )
    add("lines_out_of_order", b"".join([lines[0], *lines[:0:-1]]), ROWS)
    add("header_between_lines", b"".join([*lines[:6], lines[0], *lines[6:]]), ROWS, [7], "step")
    add("other_columns", b"time,loss\n1,0.5\n2,0.4\n", 0, [1], "name and step")
    for name, data in FOREIGN.items():
        corpus.add(
            "msprobe", f"foreign_{name}", {place: data}, written=0, says=place, exit={"convert": 3}
        )
    corpus.add("msprobe", "directory", {place: None}, written=0, says=place, exit={"convert": 3})


# --- JSON -----------------------------------------------------------------------------------------
def json_cases(corpus: Corpus) -> None:
    anomaly = {
        f"0:fc.weight/rank0/post_grad_step_{step}_call_1": {
            "rank": 0,
            "step": step,
            "micro_step": 0,
            "pp_stage": 0,
            "vpp_stage": 0,
            "call_id": 1,
            "tag_name": "0:fc.weight/rank0/post_grad",
            "message": "m",
            "group_mates": [0],
        }
        for step in (3, 1)
    }
    control = {"format": 1, "number": 3, "on": True, "set": {"every": 10}, "apply_at_step": None}
    config = {"kinds": ["grads"], "every": 2}
    sources = {
        "run_json": ("run.json", (BASE / "run.json").read_bytes(), {"convert": 3, "doctor": 3}),
        "health_json": (
            "health.json",
            (BASE / "health.json").read_bytes(),
            {"convert": 3, "doctor": 3},
        ),
        "control": ("control.json", json.dumps(control, indent=1).encode(), {"ctl": [1, 2]}),
        "anomaly": ("anomaly.json", json.dumps(anomaly, indent=1).encode(), {"anomalies": 3}),
        "config": ("config.json", json.dumps(config, indent=1).encode(), {"config": [1, 2]}),
    }
    for reader, (place, text, codes) in sources.items():
        fine = dict.fromkeys(codes, 1 if reader == "anomaly" else 0)

        def add(name, data, says, code=codes, reader=reader, place=place):
            corpus.add(reader, name, {place: data}, says=says, exit=code)

        add("sound", text, "", fine)
        add("truncated", text[: len(text) // 2], place)
        add("truncated_to_one_byte", text[:1], place)
        add("bitflip_at_the_beginning", flipped(text, 0, 5), place)
        middle = text.index(b'": ', len(text) // 3) + 1
        add("bitflip_in_a_colon", flipped(text, middle, 1), place)
        add("bitflip_at_the_end", flipped(text.rstrip(), len(text.rstrip()) - 1, 0), place)
        add("twice", text + text, place)
        add("a_list", b"[" + text + b"]", place)
        add(
            "deep",
            b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}"
            if reader in ("control", "config")
            else b"[" * 1500,
            place,
        )
        add("deep_and_closed", b'{"config":' + b"[" * 5000 + b"]" * 5000 + b"}", place)
        for name, data in FOREIGN.items():
            add(f"foreign_{name}", data, place)
        add("directory", None, place)
    run = json.loads(sources["run_json"][1])
    health = json.loads(sources["health_json"][1])

    def text_of(value):
        return json.dumps(value, indent=1).encode()

    fine = {"convert": 0, "doctor": 0}
    corpus.add(
        "run_json", "unknown_key", {"run.json": text_of(run | {"later": [1]})}, says="", exit=fine
    )
    odd = {"convert": 3, "doctor": 3}
    corpus.add(
        "run_json",
        "another_type",
        {"run.json": text_of(run | {"start_steps": "0"})},
        says="start_steps",
        exit=odd,
    )
    corpus.add(
        "run_json",
        "number_too_large",
        {"run.json": text_of(run | {"world_size": 2**70})},
        says="world_size",
        exit=odd,
    )
    corpus.add(
        "health_json",
        "unknown_key",
        {"health.json": text_of(health | {"later": 1})},
        says="",
        exit=fine,
    )
    corpus.add(
        "health_json",
        "another_type",
        {"health.json": text_of(health | {"closed": "yes"})},
        says="closed",
        exit=odd,
    )
    corpus.add(
        "control",
        "unknown_key",
        {"control.json": text_of(control | {"sett": {}})},
        says="sett",
        exit={"ctl": [1, 2]},
    )
    corpus.add(
        "control",
        "format_2",
        {"control.json": text_of(control | {"format": 2})},
        says="format",
        exit={"ctl": [1, 2]},
    )
    corpus.add(
        "config",
        "unknown_key",
        {"config.json": text_of(config | {"evry": 3})},
        says="evry",
        exit={"config": [1, 2]},
    )
    key = next(iter(anomaly))
    without = {name: value for name, value in anomaly[key].items() if name != "step"}
    corpus.add(
        "anomaly",
        "entry_without_step",
        {"anomaly.json": text_of(anomaly | {key: without})},
        says="no step",
        exit={"anomalies": 3},
    )
    text = text_of(anomaly)
    again = text.rstrip()[:-1] + b"," + text.lstrip()[1:]
    corpus.add(
        "anomaly",
        "entries_twice",
        {"anomaly.json": again},
        says="2 entries have the key",
        exit={"anomalies": 3},
    )
    more = anomaly | {key: anomaly[key] | {"later": 1}}
    corpus.add(
        "anomaly", "unknown_key", {"anomaly.json": text_of(more)}, says="", exit={"anomalies": 1}
    )


# --- directions -----------------------------------------------------------------------------------
def direction_cases(corpus: Corpus) -> None:
    import io

    import numpy as np

    from direction_dumps import sign_bytes

    positive = np.random.default_rng(12).normal(size=(5, 7)) > 0

    def saved(array, version=None):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version=version)
        return file.getvalue()

    def add(reader, name, data, says):
        corpus.add(reader, name, {f"w.{reader}": data}, says=says, exit={})

    npy, sign = saved(positive), sign_bytes([positive])
    for reader, sound in (("npy", npy), ("sign", sign)):
        add(reader, "sound", sound, "")
        add(reader, "truncated_in_the_magic", sound[:5], "cut short")
        add(reader, "truncated_in_the_head", sound[:15], "cut short")
        add(reader, "truncated_at_the_end", sound[:-1], "cut short")
        add(reader, "longer", sound + b"\0", "longer")
        add(reader, "bitflip_in_the_magic", flipped(sound, 2), f"no .{reader} file")
        for name, data in FOREIGN.items():
            add(reader, f"foreign_{name}", data, f"no .{reader} file")
    add("npy", "version_3", saved(positive, (3, 0)), "")
    add("npy", "in_columns", saved(np.asfortranarray(positive)), "")
    add("npy", "float32", saved(positive.astype(np.float32)), "<f4, not bool")
    add("npy", "records", saved(np.zeros(3, [("a", "?")])), "records")
    add("npy", "other_sizes", saved(positive.T), "sizes")
    add("npy", "bitflip_in_the_version", flipped(npy, 6, 6), "version 65.0")
    add("npy", "bitflip_in_a_key", npy.replace(b"shape", b"shbpe"), "shbpe")
    add("npy", "sizes_too_large", npy.replace(b"(5, 7)", b"(%d, 7)" % 2**62)[: len(npy)], "large")
    add("npy", "deep", npy.replace(b"(5, 7)", b"((((((((((((("), "damaged")
    add("sign", "three_valued", sign_bytes([positive, ~positive]), "")
    add("sign", "other_sizes", sign_bytes([positive.T]), "sizes")
    add("sign", "bitflip_in_a_plane", flipped(sign, len(sign) - 6, 3), "checksum")
    add("sign", "bitflip_in_the_checksum", flipped(sign, len(sign) - 2, 3), "checksum")
    add("sign", "three_planes", sign[:8] + b"\3" + sign[9:], "head is damaged")
    add("sign", "sizes_too_large", sign[:22] + b"\xff\x7f" + sign[24:], "head is damaged")
    add("sign", "sizes_beyond_the_file", sign[:20] + b"\1" + sign[21:], "cut short")


def main() -> None:
    sys.path.insert(0, str(HERE.parent / "python"))
    if "--base" in sys.argv:
        make_base()
    for directory in OUT.iterdir():
        if directory.is_dir() and directory != BASE:
            shutil.rmtree(directory)
    corpus = Corpus()
    for cases in (log_cases, csv_cases, sqlite_cases, msprobe_cases, json_cases, direction_cases):
        cases(corpus)
    corpus.write()
    print(sum(map(len, corpus.cases.values())), "cases")


if __name__ == "__main__":
    main()
