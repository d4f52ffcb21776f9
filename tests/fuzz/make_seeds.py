"""make_seeds.py FOLDER: real runs with checks as inputs of diagnose_fuzz.

Each file has the segments of all ranks of a run, one after the other. Their frames are unpacked, so that a
change of a byte is a change of a record. Checksums are made by the target.
"""

import pathlib
import struct
import sys
import tempfile

import pyarrow
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import trainmon

HEADER = struct.Struct("<4sBBHIIIII")  # magic, type, codec, 0, stored, raw, number, checksums


def unpacked(segment: bytes) -> bytes:
    at = segment.index(b"tmFR")
    parts = [segment[:at]]
    while at + HEADER.size <= len(segment):
        magic, kind, codec, zero, stored, raw, number, *_ = HEADER.unpack_from(segment, at)
        assert magic == b"tmFR"
        payload = segment[at + HEADER.size : at + HEADER.size + stored]
        if codec == 1:
            payload = pyarrow.Codec("zstd").decompress(payload, raw).to_pybytes()
        parts += [HEADER.pack(magic, kind, 0, zero, raw, raw, number, 0, 0), payload]
        at += HEADER.size + stored
    return b"".join(parts)


def train(rank: int, ranks: int, out: str, case: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    trained = model
    if ranks > 1:
        rendezvous = f"file://{out}.rendezvous"
        dist.init_process_group("gloo", rendezvous, world_size=ranks, rank=rank)
        trained = torch.nn.parallel.DistributedDataParallel(model)
    kinds = {"Adam": torch.optim.AdamW, "SGD": torch.optim.SGD, "edit": torch.optim.Adam}
    optimizer = kinds[case](model.parameters(), lr=0.01)
    monitor = trainmon.watch(
        trained, optimizer, kinds=["grads", "grad_unreduced"], checks=True, every=1, out=out
    )
    for step in range(4):
        ids = torch.randint(0, 9, (2, 3), dtype=torch.float32)
        loss = (trained(ids + rank) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        monitor.log(loss=loss.item(), grad_norm=float(norm))
        if case == "edit" and step == 2:
            with monitor.edits("halves a weight"):
                model.weight.data.mul_(0.5)
        if case == "SGD" and step == 3:
            model.weight.data[0, 0] += 1e-3  # the fault
        optimizer.step()
    monitor.stop()
    if ranks > 1:
        dist.destroy_process_group()


def main():
    folder = pathlib.Path(sys.argv[1])
    for case, ranks in (("Adam", 1), ("edit", 1), ("SGD", 1), ("Adam", 2), ("SGD", 2), ("SGD", 3)):
        with tempfile.TemporaryDirectory() as at:
            out = str(pathlib.Path(at, "run"))
            if ranks == 1:
                train(0, 1, out, case)
            else:
                processes.spawn(train, (ranks, out, case), nprocs=ranks)
            segments = sorted(pathlib.Path(out).glob("rank_*/restart_0000/log-000000.tmlog"))
            assert len(segments) == ranks
            folder.mkdir(parents=True, exist_ok=True)
            seed = b"".join(unpacked(segment.read_bytes()) for segment in segments)
            folder.joinpath(f"{case}_{ranks}").write_bytes(seed)
            print(case, ranks, len(seed))


if __name__ == "__main__":
    main()
