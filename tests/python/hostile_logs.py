"""Frames that no writer of ours writes, made from docs/formats.md alone: few bytes that claim, or
unpack to, very many. Their checksums hold."""

from __future__ import annotations

import struct

import google_crc32c
import zstandard

ROWS, OUTCOMES, SCALARS, PAYLOADS, ALERTS, GAPS, DECLARED, SHAPES = range(1, 9)
SERIES_FRAME, BATCH_FRAME = 2, 3


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def block(data: bytes) -> bytes:
    return varint(len(data)) + data


def frame(kind: int, number: int, payload: bytes, packed: bytes | None = None) -> bytes:
    if packed is None:
        packed = zstandard.compress(payload, 19)
    header = struct.pack("<4sBBHII", b"tmFR", kind, 1, 0, len(packed), len(payload))
    header += struct.pack("<II", number, google_crc32c.value(packed))
    return header + struct.pack("<I", google_crc32c.value(header)) + packed


def batch(number: int, *sections: bytes) -> bytes:
    return varint(number) + b"\0" + struct.pack("<qd", 1, 0.0) + b"".join(sections)


def section(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + block(data)


def rows(count: int, columns: dict[int, bytes]) -> bytes:
    """`columns`: id -> the encoding and its bytes."""
    data = varint(count) + varint(len(columns))
    for column, (encoding, values) in columns.items():
        data += bytes([column, encoding]) + block(values)
    return section(ROWS, data)


def records(tag: int, count: int, record: bytes) -> bytes:
    return section(tag, varint(count) + block(record) * count)


SEQ, WINDOW = 6, 3
FIRST = 10**6  # of the batches' numbers


def definition(number: int) -> bytes:
    """A series: kind "a", everything else empty or 0."""
    return block(varint(number) + block(b"a") + b"\0" * 4 + b"\0" * 5)


def frames(name: str, first: int) -> list[bytes]:
    """The frames of that attack, with ascending numbers from `first` on."""
    million = 10**6
    if name == "rows":
        payload = batch(FIRST, rows(8 * million, {SEQ: (2, b"\2" * 8 * million)}))
        return [frame(BATCH_FRAME, first, payload)]
    if name == "rows_of_many_windows":
        ones = b"\2" * 3 * million
        payload = batch(FIRST, rows(3 * million, {SEQ: (2, ones), WINDOW: (2, ones)}))
        return [frame(BATCH_FRAME, first, payload)]
    if name == "rows_many_times":
        return [
            frame(
                BATCH_FRAME,
                first + i,
                batch(FIRST + i, rows(2 * million, {SEQ: (2, b"\2" * 2 * million)})),
            )
            for i in range(12)
        ]
    if name == "text":
        size = 400 * million
        payload = batch(FIRST, records(SCALARS, 1, block(b"x" * size) + b"\0\0" + b"\0" * 8))
        return [frame(BATCH_FRAME, first, payload)]
    if name == "gaps":
        return [frame(BATCH_FRAME, first, batch(FIRST, records(GAPS, 8 * million, b"\0" * 4)))]
    if name == "alerts":
        record = b"\0" + b"\0" * 6 + b"\0" * 3
        return [frame(BATCH_FRAME, first, batch(FIRST, records(ALERTS, 4 * million, record)))]
    if name == "outcomes":
        record = b"\0" * 5 + b"\0" * 8
        return [frame(BATCH_FRAME, first, batch(FIRST, records(OUTCOMES, 8 * million, record)))]
    if name == "shapes":
        record = bytes([64]) + b"\1" * 64
        return [frame(BATCH_FRAME, first, batch(FIRST, records(SHAPES, million, record)))]
    if name == "series":
        count = million
        payload = varint(count) + b"".join(map(definition, range(1000, 1000 + count)))
        return [frame(SERIES_FRAME, first, payload)]
    if name == "claim":
        # A zstd frame that says 2^30 bytes and has none.
        packed = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + b"\1\0\0"
        header = struct.pack("<4sBBHII", b"tmFR", BATCH_FRAME, 1, 0, len(packed), 1 << 30)
        header += struct.pack("<II", first, google_crc32c.value(packed))
        return [header + struct.pack("<I", google_crc32c.value(header)) + packed]
    raise ValueError(name)


NAMES = (
    "rows",
    "rows_of_many_windows",
    "rows_many_times",
    "text",
    "gaps",
    "alerts",
    "outcomes",
    "shapes",
    "series",
    "claim",
)
