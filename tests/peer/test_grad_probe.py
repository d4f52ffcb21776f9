"""Files of PrecisionDebugger beside those of mindstudio-probe 8.3.3, for the same run: the same bytes but
for the MD5 column, where the peer has a CRC-32, and norms that it adds up in the gradient's own dtype.
"""

import csv
import json
import math
import pathlib

import pytest

import launch

HERE = pathlib.Path(__file__).resolve().parent
NARROW = ("narrow.weight", "narrow.bias")  # bfloat16


def run(face, interpreter, folder, block, **fields):
    folder.mkdir()
    config = folder / "config.json"
    given = {"task": "grad_probe", "dump_path": str(folder / "dump"), "grad_probe": block, **fields}
    config.write_text(json.dumps(given))
    config.chmod(0o640)
    launch.run(HERE / "grad_probe_run.py", face, config, interpreter=interpreter, timeout=300)
    return folder / "dump" / "rank0"


def files(folder):
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {name: p for name, p in found.items() if p.suffix in (".csv", ".npy")}


def lines(path):
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf") and data.count(b"\r\n") == data.count(b"\n")
    return list(csv.reader(data.decode("utf-8-sig").splitlines()))


def assert_same_summary(ours, theirs):
    header, *rows = lines(ours)
    peers_header, *peers_rows = lines(theirs)
    assert header == peers_header and len(rows) == len(peers_rows)
    for row, peers in zip(rows, peers_rows, strict=True):
        for column, one, two in zip(header, row, peers, strict=True):
            if column != "norm":
                assert one == two, (row[0], column)
                continue
            tolerance = 1e-2 if row[0] in NARROW else 1e-6
            assert math.isclose(float(one), float(two), rel_tol=tolerance), (row[0], one, two)


@pytest.mark.parametrize(
    "block",
    [
        {"grad_level": "L0", "digest": "crc32"},
        {"grad_level": "L1"},
        {"grad_level": "L2"},
        {"grad_level": "L2", "bounds": [-0.01, -1e-05, 0, 0.001, 3]},
        {"grad_level": "L1", "param_list": ["up.weight", "number"]},
    ],
    ids=["L0", "L1", "L2", "bounds", "param_list"],
)
def test_the_same_files(peer833_python, tmp_path, block):
    fields = {"step": [0, "2-3"], "rank": []}
    ours = run("ours", None, tmp_path / "ours", block, **fields)
    theirs = run("peer", peer833_python, tmp_path / "peer", block, **fields)
    mine, peers = files(ours), files(theirs)
    assert sorted(mine) == sorted(peers) and len(peers) >= 3
    for name, path in peers.items():
        if path.suffix == ".npy":
            assert mine[name].read_bytes() == path.read_bytes(), name
        else:
            assert_same_summary(mine[name], path)


def test_md5_is_another_column_of_the_same_file(peer833_python, tmp_path):
    block = {"grad_level": "L0"}
    ours = run("ours", None, tmp_path / "ours", block)
    theirs = run("peer", peer833_python, tmp_path / "peer", block)
    for row, peers in zip(
        lines(ours / "grad_summary_1.csv"), lines(theirs / "grad_summary_1.csv"), strict=True
    ):
        assert len(row[1]) in (3, 32) and len(peers[1]) in (3, 8)
        assert row[0] == peers[0] and row[2:4] == peers[2:4]
