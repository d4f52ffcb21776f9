"""A decoder of log segments written from docs/formats.md alone, sharing no code with trainmon.

It takes sound segments only: every departure from the document is an exception. It checks the
checksums with google-crc32c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import google_crc32c
import zstandard

COLUMNS = {
    1: ("series", int, 0),
    2: ("flags", int, 0),
    3: ("window", int, 0),
    4: ("accum", int, 0),
    5: ("call", int, 0),
    6: ("seq", int, 0),
    7: ("count", int, 0),
    8: ("nans", int, 0),
    9: ("pos_infs", int, 0),
    10: ("neg_infs", int, 0),
    11: ("zeros", int, 0),
    12: ("subnormals", int, 0),
    13: ("sum", float, 0.0),
    14: ("mean", float, 0.0),
    15: ("m2", float, 0.0),
    16: ("sum_sq", float, 0.0),
    17: ("min", float, float("inf")),
    18: ("max", float, float("-inf")),
    19: ("absmax", float, 0.0),
    20: ("exponent", int, 0),
    21: ("shape", int, 0),
}
# fmt: off
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
    "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)
# fmt: on
SPACES = ("whole", "box", "flat")
REPLICATIONS = ("identical", "union", "partial", "independent")
FATES = ("taken", "skipped", "unknown")


class Reader:
    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        assert size <= self.left(), "read past the end"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                assert value < 2**64
                return value

    def svarint(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bytes(self) -> bytes:
        return self.take(self.varint())

    def text(self) -> str:
        return self.bytes().decode("utf-8", "surrogateescape")


@dataclass
class Segment:
    start: dict = field(default_factory=dict)
    columns: dict = field(default_factory=dict)
    series: dict = field(default_factory=dict)
    batches: list = field(default_factory=list)


def decode(data: bytes) -> Segment:
    reader = Reader(data)
    assert reader.take(8) == b"TMLOG\r\n\x1a"
    assert reader.number("I") == 0x01020304
    assert reader.number("H") == 1
    reader.number("H")
    segment = Segment()
    number = 0
    while reader.left():
        header = reader.take(28)
        magic, kind, codec, zero, stored, raw, frame, crc, header_crc = struct.unpack(
            "<4sBBHIIIII", header
        )
        assert magic == b"tmFR" and zero == 0 and frame == number
        assert google_crc32c.value(header[:24]) == header_crc
        payload = reader.take(stored)
        assert google_crc32c.value(payload) == crc
        if codec == 1:
            payload = zstandard.decompress(payload)
        else:
            assert codec == (2 if kind == 4 else 0)
        assert len(payload) == raw or codec == 2
        number += 1
        if kind == 1:
            assert frame == 0
            _segment(Reader(payload), segment)
        elif kind == 2:
            _series(Reader(payload), segment)
        elif kind == 3:
            segment.batches.append(_batch(Reader(payload), segment))
        elif kind == 4:
            segment.batches.extend(_group(Reader(payload), raw, segment))
    return segment


def _segment(r: Reader, segment: Segment) -> None:
    for name in ("number", "previous", "previous_bytes", "rank", "world_size", "restart"):
        segment.start[name] = r.svarint()
    segment.start["eps"] = r.number("d")
    segment.start["run_id"] = r.text()
    for _ in range(r.varint()):
        column, kind = r.number("B"), r.number("B")
        segment.columns[column] = ({1: int, 2: float}[kind], r.text())
    if r.left():
        segment.start["compacted_bytes"], segment.start["written_bytes"] = (
            r.number("q"),
            r.number("q"),
        )


def _series(r: Reader, segment: Segment) -> None:
    for _ in range(r.varint()):
        f = Reader(r.bytes())
        number = f.varint()
        segment.series[number] = {
            "kind": f.text(),
            "chunk": f.svarint(),
            "name": f.text(),
            "element": f.text(),
            "optimizer": f.svarint(),
            "dtype": DTYPES[f.number("B")],
            "space": SPACES[f.number("B")],
            "ranges": [(f.svarint(), f.svarint()) for _ in range(f.varint())],
            "full_shape": [f.svarint() for _ in range(f.varint())],
            "replication": REPLICATIONS[f.number("B")],
        }


def _part(r: Reader, sizes: list[int]) -> Reader:
    size, data = r.varint(), r.bytes()
    sizes.append(size)
    if size == 0:
        return Reader(data)
    data = zstandard.decompress(data)
    assert len(data) == size
    return Reader(data)


def _group(r: Reader, raw: int, segment: Segment) -> list[dict]:
    sizes: list[int] = []
    batches = []
    count = r.varint()
    heads = _part(r, sizes)
    rows = _columns(r, r.varint(), lambda: _part(r, sizes))
    assert r.left() == 0 and sum(sizes) == raw
    for _ in range(count):
        own, bad = heads.varint(), heads.number("B")
        windows = [(heads.svarint(), heads.svarint()) for _ in range(heads.varint())]
        batch = _batch(Reader(heads.bytes()), segment, rows[:own])
        rows = rows[own:]
        found = {
            (segment.series[row["series"]]["optimizer"], row["window"]) for row in batch["rows"]
        }
        assert windows == sorted(found)
        assert bad == any(row["nans"] + row["pos_infs"] + row["neg_infs"] for row in batch["rows"])
        batches.append(batch)
    assert not rows and heads.left() == 0
    return batches


def _batch(r: Reader, segment: Segment, rows: list[dict] | None = None) -> dict:
    batch = {
        "number": r.varint(),
        "moment": r.number("B"),
        "time_ns": r.number("q"),
        "eps": r.number("d"),
        "rows": rows or [],
    }
    readers = {
        1: ("rows", _rows),
        2: ("outcomes", _outcome),
        3: ("scalars", _scalar),
        4: ("payloads", _payload),
        5: ("alerts", _alert),
        6: ("gaps", _gap),
        7: ("declared", _declared),
        8: ("shapes", _shape),
        9: ("checks", _check),
        10: ("samples", _sample),
    }
    while r.left():
        tag, data = r.number("B"), Reader(r.bytes())
        assert tag != 1 or rows is None, "the rows of a group are in its columns"
        if tag not in readers:
            continue
        name, read = readers[tag]
        if tag == 1:
            batch[name] = read(data)
        else:
            batch[name] = [read(Reader(data.bytes())) for _ in range(data.varint())]
        assert data.left() == 0
    seq = 0
    for check in batch.get("checks", []):
        seq = check["seq"] = (seq + check["seq"]) % 2**64
    seq = 0
    for sample in batch.get("samples", []):
        seq = sample["seq"] = (seq + sample["seq"]) % 2**64
    for row in batch["rows"]:
        assert row["series"] in segment.series, "used before it is defined"
        full_shape = segment.series[row["series"]]["full_shape"]
        row["shape"] = [None, full_shape, *batch.get("shapes", [])][row["shape"]]
    return batch


def _rows(r: Reader) -> list[dict]:
    count = r.varint()
    assert count <= r.left()
    return _columns(r, count, lambda: Reader(r.bytes()))


def _columns(r: Reader, count: int, data_of) -> list[dict]:
    rows = [{name: default for name, _, default in COLUMNS.values()} for _ in range(count)]
    for _ in range(r.varint() if count else 0):
        column, encoding, data = r.number("B"), r.number("B"), data_of()
        if column not in COLUMNS:
            continue
        name, kind, _ = COLUMNS[column]
        for row, value in zip(rows, _values(data, encoding, kind, name, rows), strict=True):
            row[name] = value
        assert data.left() == 0
    return rows


def _values(data: Reader, encoding: int, kind: type, name: str, rows: list[dict]) -> list:
    one = data.svarint if kind is int else lambda: data.number("d")
    if encoding == 0:
        return [one()] * len(rows)
    if encoding == 1:
        return [one() for _ in rows]
    if encoding == 2:
        assert kind is int
        values, last = [], 0
        for _ in rows:
            last = (last + data.svarint()) % 2**64
            values.append(last - 2**64 if last >= 2**63 else last)
        return values
    if encoding == 3:
        assert kind is float
        return [data.number("f") for _ in rows]
    assert encoding == 4
    return [_implied(name, row) for row in rows]


def _implied(name: str, row: dict) -> float:
    finite = row["count"] - row["nans"] - row["pos_infs"] - row["neg_infs"]
    if finite <= 0:
        return 0.0
    if name == "mean":
        return row["sum"] / float(finite)
    assert name == "absmax"
    return max(abs(row["min"]), abs(row["max"]))


def _sample(r: Reader) -> dict:
    values = {"seq": r.varint(), "elements": r.svarint()}
    names = ("sum_error", "sum_sq_error", "min", "max")
    return values | {name: r.number("d") for name in names}


def _key(r: Reader) -> dict:
    return {
        "series": r.varint(),
        "flags": r.varint(),
        "window": r.svarint(),
        "accum": r.svarint(),
        "call": r.svarint(),
        "seq": r.varint(),
    }


def _outcome(r: Reader) -> dict:
    return {
        "optimizer": r.svarint(),
        "window": r.svarint(),
        "step": r.svarint(),
        "attempt": r.svarint(),
        "fate": FATES[r.number("B")],
        "loss_scale": r.number("d"),
    }


def _scalar(r: Reader) -> dict:
    return {"name": r.text(), "window": r.svarint(), "seq": r.varint(), "value": r.number("d")}


def _payload(r: Reader) -> dict:
    return {"type": r.number("B"), "key": _key(r), "bytes": r.bytes()}


def _check(r: Reader) -> dict:
    check = {"seq": r.varint(), "fingerprint": r.number("Q")}
    sums = r.varint()
    assert sums in (0, 8)
    return check | {"sketch": [r.number("f") for _ in range(sums)]}


def _alert(r: Reader) -> dict:
    alert = {
        "rule": r.text(),
        "key": _key(r),
        "step": r.svarint(),
        "message": r.text(),
        "count": r.svarint(),
    }
    if r.left():
        alert |= {"stat": r.text(), "value": r.number("d"), "expected": r.number("d")}
    return alert


def _declared(r: Reader) -> dict:
    declared = {
        "optimizer": r.svarint(),
        "group": r.svarint(),
        "window": r.svarint(),
        "seq": r.varint(),
        "values": {},
    }
    for _ in range(r.varint()):
        name, kind = r.text(), r.number("B")
        declared["values"][name] = (lambda: r.number("d"), r.text, lambda: None)[kind]()
    assert r.left() == 0
    return declared


def _gap(r: Reader) -> dict:
    return {
        "reason": r.text(),
        "rows": r.svarint(),
        "first_seq": r.varint(),
        "last_seq": r.varint(),
    }


def _shape(f: Reader) -> list[int]:
    count = f.varint()
    assert count <= 64
    return [f.varint() for _ in range(count)]
