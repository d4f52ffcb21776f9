"""A decoder of flight recorders written from docs/formats.md alone, sharing no code with trainmon.

It takes sound files only: every departure from the document is an exception. It checks the checksums
with google-crc32c.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

import google_crc32c

TYPES = {1: "row", 2: "outcome", 3: "scalar", 4: "alert", 5: "stage", 6: "enter", 7: "leave"}
FATES = ("taken", "skipped", "unknown")
STAGES = {
    1: "forward begins",
    2: "forward has ended",
    3: "backward begins",
    4: "backward has ended",
    5: "step begins",
    6: "step has ended",
}
SLOT = struct.Struct("<Qq HHI qq ii Q qqq 4d I i I I")
MEMBERS = (
    *("seq", "time", "type", "detail", "id", "window", "step", "accum", "call", "number"),
    *("count", "nans", "infs", "a", "b", "c", "d", "flags", "optimizer", "group"),
)


def checked(content: bytes, checksum: int) -> bytes:
    assert google_crc32c.value(content) == checksum
    return content


@dataclass
class Ring:
    rank: int
    world_size: int
    restart: int
    clock: int
    pid: int
    started: int
    host: str
    run_id: str
    slots: int
    claimed: int
    closed: bool
    beat: int
    description: dict
    series: dict[int, tuple] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    groups: dict[int, tuple] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    unfinished: int = 0

    def of(self, *types: str) -> list[dict]:
        return [event for event in self.events if event["type"] in types]


def decode(content: bytes) -> Ring:
    assert content[:8] == b"TMFLIGHT"
    version, slot_bytes = struct.unpack_from("<II", content, 8)
    assert (version, slot_bytes) == (1, 128)
    names_at, names_bytes, slots_at, slots = struct.unpack_from("<4Q", content, 16)
    rank, world_size, restart, clock, pid, started = struct.unpack_from("<4iqq", content, 48)
    checked(content[:252], struct.unpack_from("<I", content, 252)[0])
    claimed, names_used, names_lost, closed, beat = struct.unpack_from("<4Qq", content, 256)
    assert names_lost == 0 and names_used <= names_bytes
    assert len(content) == slots_at + slots * 128
    ring = Ring(
        *(rank, world_size, restart, clock, pid, started),
        *(content[at : at + 64].rstrip(b"\0").decode() for at in (80, 144)),
        *(slots, claimed, closed == 1, beat),
        json.loads(content[512:4096].rstrip(b"\0")),
    )
    at, end = names_at, names_at + names_used
    while at < end:
        checksum, kind, length, number = struct.unpack_from("<IHHI", content, at)
        size = (12 + length + 3) // 4 * 4
        checked(content[at + 4 : at + size], checksum)
        text = content[at + 12 : at + 12 + length].decode()
        if kind == 1:
            ring.series[number] = tuple(text.split("\0"))
        elif kind == 2:
            ring.words[number] = text
        else:
            assert kind == 3
            ring.groups[number] = tuple(text.split("\0"))
        at += size
    assert at == end
    for index in range(slots):
        _slot(ring, index, content[slots_at + index * 128 : slots_at + (index + 1) * 128])
    ring.events.sort(key=lambda event: event["seq"])
    return ring


def _slot(ring: Ring, index: int, content: bytes) -> None:
    """Adds its event; one that is not as *claimed* asks for is counted, and must say why."""
    *values, checksum = SLOT.unpack(content)
    event = dict(zip(MEMBERS, values, strict=True))
    begun = ring.claimed - (ring.claimed - 1 - index) % ring.slots if ring.claimed > index else 0
    if begun == 0:
        assert not any(content)
    elif event["seq"] >> 63 or event["seq"] != begun:
        assert event["seq"] >> 63 or not any(content) or event["seq"] < begun
        ring.unfinished += 1
    else:
        checked(content[:124], checksum)
        ring.events.append(_named(event))


def _named(event: dict) -> dict:
    event["type"] = TYPES[event["type"]]
    if event["type"] == "outcome":
        event["detail"] = FATES[event["detail"]]
    elif event["type"] == "stage":
        event["detail"] = STAGES[event["detail"]]
    return event
