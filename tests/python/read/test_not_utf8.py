"""Names whose bytes are not UTF-8, as a C++ program or a forged log may have them: every reader and writer
takes them, and none of their rows is lost."""

from __future__ import annotations

import struct
import subprocess
import warnings

import google_crc32c
import pandas
import pytest
import torch
import zstandard
from torch import nn

import launch
import trainmon

# of one length each
NAMES = {
    b"layer_a": b"l\xffyer_a",
    b"my_loss_value": b"my_l\xffss_value",
    b"weight_decay": b"weight\xffdecay",
    b"exp_avg_sq": b"exp\xffavg\xffsq",
}
HEADER = struct.Struct("<4sBBHIIII")


def rewrite(log: bytes) -> bytes:
    """The log with other names, its frames as docs/formats.md says."""
    at = log.index(b"tmFR")
    out = log[:at]
    while at < len(log):
        magic, kind, codec, zero, packed, _, number, _ = HEADER.unpack_from(log, at)
        body = log[at + 28 : at + 28 + packed]
        plain = zstandard.decompress(body) if codec else body
        for old, new in NAMES.items():
            plain = plain.replace(old, new)
        new = zstandard.compress(plain) if codec else plain
        fields = magic, kind, codec, zero, len(new), len(plain), number, google_crc32c.value(new)
        header = HEADER.pack(*fields)
        out += header + struct.pack("<I", google_crc32c.value(header)) + new
        at += 28 + packed
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("not_utf8") / "run"
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("layer_a", nn.Linear(4, 4))
    model.add_module("layer_b", nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(out)) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean() * (float("nan") if step == 15 else 1.0)
            loss.backward()
            optimizer.step()
            monitor.log(my_loss_value=float(loss.detach()))
    rows = len(trainmon.read(str(out)))
    for log in out.rglob("*.tmlog"):
        log.write_bytes(rewrite(log.read_bytes()))
    return str(out), rows


def test_python_gives_every_row_and_the_names_as_surrogates(run):
    path, rows = run
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = trainmon.read(path)
        assert len(table) == rows
        assert "l\udcffyer_a.weight" in set(table["name"]) and "exp\udcffavg\udcffsq" in set(
            table["kind"]
        )
        assert sum(len(one["name"]) for one in trainmon.scan(path)) == rows
        verdict = trainmon.diagnose(path)["verdict"]
        assert (verdict["check"], verdict["step"]) == ("finite", 15)
        assert trainmon.first_bad(path).step == 15
        for engine in ("sqlite", "duckdb"):
            assert trainmon.query(path, "SELECT count(*) FROM rows", engine=engine).rows == [
                (rows,)
            ]
        assert "yer_a" in trainmon.report(path).html


COMMANDS = (
    "top", "first-bad", "diagnose", "doctor", "show", "tail", "plot -o OUT.png", "query SQL", "merge -o OUT",
    "report -o OUT.html", "convert --to parquet -o OUT", "convert --to csv -o OUT", "convert --to jsonl -o OUT",
    "convert --to sqlite -o OUT.db", "convert --to tensorboard -o OUT", "convert --to msprobe_db -o OUT",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_them(run, command, tmp_path):
    name, *options = command.replace("OUT", str(tmp_path / "out")).split()
    options = [option.replace("SQL", "SELECT * FROM rows") for option in options]
    done = subprocess.run(
        [launch.command_line(), name, run[0], *options], capture_output=True, timeout=120
    )
    found = name in ("first-bad", "diagnose", "report", "doctor")
    assert done.returncode == int(found and name != "doctor"), done.stderr
    assert b"Traceback" not in done.stderr and b"not used" not in done.stderr


def test_parquet_has_every_row_with_the_bytes_written_out(run, tmp_path):
    path, rows = run
    done = subprocess.run(
        [launch.command_line(), "convert", path, "--to", "parquet", "-o", tmp_path / "out"],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    table = pandas.read_parquet(tmp_path / "out")
    assert len(table) == rows
    assert r"l\xffyer_a.weight" in set(table["name"])
