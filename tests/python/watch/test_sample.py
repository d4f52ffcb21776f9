# Sampled blocks: what is drawn and estimated, recomputed with NumPy; and every reader of such rows.
import json
import pathlib
import subprocess

import numpy as np
import pytest
import torch

import launch
import log_decoder
import trainmon

WIDTH = 256
BATCH = 300  # 75 blocks of 1,024 elements
SAMPLED = 128


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
    )


def trained(folder, steps=3, poison=None, seen=None, model=None, every=1, **keys):
    model = model or model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if folder is not None:
        keys = {"kinds": ["activations", "grads"]} | keys
        monitor = trainmon.watch(model, optimizer, out=folder, every=every, **keys)
    torch.manual_seed(1)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH)
        if step == poison:
            x[:] = float("nan")
        model(x).square().mean().backward()
        optimizer.step()
        if seen is not None:
            seen.append(x.numpy().copy())
    if monitor is not None:
        monitor.stop()
    return model, monitor


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def seed_of(rank, series, window, accum, call):
    seed = mix64(rank % 2**64)
    for part in (series, window, accum, call):
        seed = mix64(seed ^ (part % 2**64))
    return seed


def estimates(x, n, seed):
    """(sum, sum of squares, their standard errors, elements read) as docs/formats.md says."""
    x = x.reshape(-1).astype(np.float64)
    blocks = len(x) // 1024
    sums = [x[blocks * 1024 :].sum(), (x[blocks * 1024 :] ** 2).sum()]
    variances, read = [0.0, 0.0], len(x) - blocks * 1024
    for h, first in enumerate(range(0, blocks, 2 * n)):
        size = min(2 * n, blocks - first)
        drawn = range(size)
        if size > 2:
            bits = mix64((seed + h * 0x9E3779B97F4A7C15) % 2**64)
            a, b = (bits >> 32) * size >> 32, (bits % 2**32) * (size - 1) >> 32
            drawn = (a, b + (b >= a))
        each = [x[(first + k) * 1024 : (first + k + 1) * 1024] for k in drawn]
        read += 1024 * len(each)
        for i, of in enumerate([[b.sum() for b in each], [(b**2).sum() for b in each]]):
            sums[i] += size / len(of) * sum(of)
            if size > 2:
                variances[i] += size**2 * (1 - 2 / size) * (of[0] - of[1]) ** 2 / 4
    return (*sums, *np.sqrt(variances), read)


def test_rows_are_the_estimates_of_the_blocks_that_are_drawn(tmp_path):
    run, seen = tmp_path / "run", []
    trained(run, seen=seen, sample="1/4")
    samples = trainmon.read_samples(run, kinds="actv", include="0")
    of_input = samples["element"] == "input.0"
    assert of_input.sum() == 3
    segment = log_decoder_rows(run)
    for at in np.flatnonzero(of_input):
        raw = segment[int(samples["seq"][at])]
        x = seen[int(samples["step"][at])]
        seed = seed_of(0, raw["series"], raw["window"], raw["accum"], raw["call"])
        total, squares, total_error, squares_error, read = estimates(x, 4, seed)
        norm = np.sqrt(squares)
        assert samples["elements"][at] == read < x.size // 3
        assert samples["count"][at] == x.size
        assert samples["norm"][at] == pytest.approx(norm, rel=1e-12)
        assert samples["mean"][at] == pytest.approx(total / x.size, rel=1e-9)
        assert samples["mean_error"][at] == pytest.approx(total_error / x.size, rel=1e-9)
        assert samples["norm_error"][at] == pytest.approx(squares_error / (2 * norm), rel=1e-9)
        assert raw["flags"] & 128 and np.isnan([raw["min"], raw["max"], raw["absmax"]]).all()
        assert raw["sample"]["sum_error"] == pytest.approx(total_error, rel=1e-9)
        assert raw["sample"]["sum_sq_error"] == pytest.approx(squares_error, rel=1e-9)
        assert abs(norm - np.linalg.norm(x)) < 6 * samples["norm_error"][at]
        assert x.min() <= samples["sample_min"][at] < samples["sample_max"][at] <= x.max()


def log_decoder_rows(run):
    """The rows of the log by seq, each with its sample, without any of trainmon's code."""
    found = {}
    for file in sorted(pathlib.Path(run).rglob("*.tmlog")):
        for batch in log_decoder.decode(file.read_bytes()).batches:
            samples = {one["seq"]: one for one in batch.get("samples", [])}
            for row in batch["rows"]:
                found[row["seq"]] = row | {"sample": samples.get(row["seq"])}
    assert found
    return found


def test_what_is_not_sampled_is_exact(tmp_path):
    trained(tmp_path / "exact")
    trained(tmp_path / "sampled", sample="1/4")
    exact, sampled = (trainmon.read(tmp_path / name) for name in ("exact", "sampled"))
    assert len(exact) == len(sampled)
    is_sampled = sampled["flags"] & SAMPLED != 0
    # Gradients of parameters, and what has fewer than 16 blocks: the outputs of the last layer.
    large = exact["count"] >= 16 * 1024
    assert (is_sampled == (exact["kind"].str.startswith("actv") & large)).all()
    keys = ["norm", "mean", "std", "min", "max", "zeros", "nans", "infs", "count"]
    for key in keys:
        assert (exact[key][~is_sampled].to_numpy() == sampled[key][~is_sampled].to_numpy()).all()
    assert (sampled["count"] == exact["count"]).all()
    assert (
        sampled.loc[is_sampled, ["min", "max", "absmax", "zeros", "nans", "infs"]].isna().all(None)
    )
    near = sampled["norm"][is_sampled] / exact["norm"][is_sampled]
    assert near.between(0.7, 1.4).all()


def test_training_is_bit_identical_and_the_sample_is_that_of_the_run(tmp_path):
    bare, _ = trained(None)
    state = torch.get_rng_state()
    one, _ = trained(tmp_path / "one", sample="1/8")
    assert torch.equal(state, torch.get_rng_state())
    trained(tmp_path / "two", sample="1/8")
    for ours, theirs in zip(one.parameters(), bare.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    first, second = (trainmon.read_table(tmp_path / name) for name in ("one", "two"))
    assert (first["flags"] & SAMPLED).any()
    np.testing.assert_array_equal(first["norm"], second["norm"])


def test_a_nan_in_the_sample_is_an_alert_and_what_follows_is_read_whole(tmp_path):
    model, monitor = trained(tmp_path / "run", steps=12, poison=2, sample="1/4")
    bad = trainmon.first_bad(tmp_path / "run")
    assert (bad.step, bad.kind, bad.name, bad.element) == (2, "actv", "", "input.0")
    assert bad.flags & SAMPLED
    table = trainmon.read_table(tmp_path / "run", kinds="actv")
    whole = {int(s) for s in table["step"][(table["flags"] & SAMPLED) == 0] if s}
    sampled = {int(s) for s in table["step"][(table["flags"] & SAMPLED) != 0]}
    assert sampled == {0, 1, 2, 11} and whole >= set(range(3, 11))
    (note,) = [a for a in table.alerts if a["rule"] == "non_finite" and a["step"] == 2][:1]
    assert "in a sample of" in note["message"]
    samples = trainmon.read_samples(tmp_path / "run", steps=2, kinds="actv")
    assert np.isnan(samples["norm"]).any() and np.isnan(samples["norm_error"]).any()
    assert samples["sample_nans"].max() > 0


@pytest.fixture(scope="module")
def sampled_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    trained(folder / "run", sample="1/4", sinks=["log", "csv", "sqlite", "tensorboard"])
    return folder / "run"


def command(*arguments):
    done = subprocess.run(
        [launch.command_line(), *map(str, arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_readers_leave_out_what_a_sample_does_not_tell(sampled_run, tmp_path):
    _, text = command("show", sampled_run, "--kind", "actv", "--name", "0")
    lines = [line for line in text.splitlines() if "input.0" in line]
    assert len(lines) == 3
    for line in lines:
        norm, least, most, nans = line.split()[-4:]
        assert norm.startswith("~") and (least, most, nans) == ("?", "?", "?")
    _, text = command("--json", "show", sampled_run, "--kind", "actv", "--name", "0")
    rows = [row for row in json.loads(text) if row["element"] == "input.0"]
    assert len(rows) == 3 and all(row["norm"] > 0 for row in rows)
    assert all(
        row[key] is None for row in rows for key in ("min", "max", "absmax", "zeros", "nans")
    )
    found = trainmon.query(
        sampled_run,
        "SELECT count(*), count(norm), count(max), count(nans) FROM stats WHERE flags & 128",
    )
    ((all_rows, *counts),) = found.rows
    assert all_rows > 0 and counts == [all_rows, 0, 0]
    found = trainmon.query(
        sampled_run, "SELECT count(*), min(norm_error), max(sample_max) FROM samples"
    )
    ((rows, error, most),) = found.rows
    assert rows == all_rows and error >= 0 and most > 0
    for chunk in trainmon.scan(sampled_run, stats=["max", "nans"]):
        estimated = chunk["flags"] & 128 != 0
        assert np.isnan(chunk["max"][estimated]).all()
        assert np.ma.getmaskarray(chunk["nans"])[estimated].all()
    assert len(trainmon.top(sampled_run, "max", by="size", kinds="activations")) > 0
    assert all(not r.flags & 128 for r in trainmon.top(sampled_run, "max", 50, by="size"))


def test_sinks_leave_out_what_a_sample_does_not_tell(sampled_run, tmp_path):
    import csv
    import sqlite3

    (file,) = sampled_run.rglob("rows-000000.csv")
    with open(file, newline="") as text:
        rows = [row for row in csv.DictReader(text) if int(row["flags"]) & 128]
    assert rows and all(float(row["norm"]) >= 0 for row in rows)
    assert {row[key] for row in rows for key in ("min", "max", "zeros", "nans")} == {""}
    (file,) = sampled_run.rglob("stats.db")
    with sqlite3.connect(file) as database:
        found = database.execute(
            "SELECT count(*), count(norm), count(max), count(zeros) FROM rows WHERE flags & 128"
        ).fetchone()
    assert found == (len(rows), len(rows), 0, 0)
    code, text = command("compare", sampled_run, sampled_run)
    assert code == 0, text


def test_two_runs_of_which_one_is_sampled_do_not_differ(tmp_path):
    trained(tmp_path / "exact")
    trained(tmp_path / "sampled", sample="1/4")
    code, text = command("compare", tmp_path / "exact", tmp_path / "sampled")
    assert code == 0, text


def test_a_run_without_the_key_has_no_sample(tmp_path):
    _, monitor = trained(tmp_path / "run")
    assert all(row["sample"] is None for row in log_decoder_rows(tmp_path / "run").values())
    assert trainmon.read_samples(tmp_path / "run").num_rows == 0
    assert trainmon.read_table(tmp_path / "run")["nans"].dtype == np.int64
    with pytest.raises(trainmon.ConfigError, match="sample"):
        trainmon.watch(model_of(), sample="1/3", out=tmp_path / "other")
