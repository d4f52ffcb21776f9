"""What `checks=True` records: fingerprints and sketches as docs/formats.md defines them, of the kinds that
obey equations, in a log that without checks is as it was."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
import torch

import launch
import log_decoder
import trainmon
import versions
from trainmon.base.row_check import CHECK_COLUMNS
from trainmon.torch.measuring import check_ops
from trainmon.torch.measuring.late_values import Late

M64 = 2**64 - 1
STEPS = 3
KINDS = {"grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"}


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


LOWER = np.array([3607, 3517, 4019, 3631, 2477, 3761, 4049, 3557])
UPPER = np.array([2887, 3089, 4091, 3923, 2633, 3677, 3919, 4021])
COLUMNS = np.array([mix64(2**63 + i) >> 33 | 1 for i in range(256)])
STEP_SIGNS = np.array([1, 1, -1, 1, 1, 1, -1, -1])


def fingerprint(data: bytes) -> int:
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
    low = (words & 0xFFFF).astype(np.uint16).view(np.int16).astype(np.int64)
    high = (words >> 16).astype(np.uint16).view(np.int16).astype(np.int64)
    at = np.arange(len(words))
    row, group = at // 16 % 8, at // 128 % 16
    of_words = COLUMNS[16 * group + at % 16] * (LOWER[row] * low + UPPER[row] * high)
    total = 0
    for block in range(-(-len(words) // 2048)):
        part = of_words[2048 * block : 2048 * (block + 1)]
        total += (mix64(block) | 1) * sum(int(x) for x in part)
    return total & M64


def sketch(values: np.ndarray) -> np.ndarray:
    """(eight sums, of the sizes of what was summed)"""
    x = values.astype(np.float64).ravel()
    at = np.arange(x.size)
    pairs = [bin(block & block >> 1).count("1") for block in range(x.size // 256 + 1)]
    signed = x * np.where(np.array(pairs)[at // 256] % 2, -1, 1) * STEP_SIGNS[at // 32 % 8]
    lanes = np.bincount(at % 16, signed, 16)
    turns = np.where(np.arange(8) % 2, -1, 1)
    return np.array([lanes[:8] + turns * lanes[8:], np.bincount(at % 8, abs(x), 8)])


def bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


class Model(torch.nn.Module):
    """A large matrix, a transposed one, one of bfloat16, one of a single element."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.large = torch.nn.Parameter(torch.randn(60, 500))
        self.turned = torch.nn.Parameter(torch.randn(40, 60).t())
        self.low = torch.nn.Parameter(torch.randn(40, 17).bfloat16())
        self.one = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return (torch.tanh(x @ self.large.t() @ self.turned) @ self.low.float()).mean() * self.one


def trained(out, **settings):
    """Runs STEPS steps; what the tensors of each kind were, by window, name and kind."""
    model = Model()
    assert not model.turned.is_contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = {}

    def keep(kind, window, name, tensor):
        seen[window, name, kind] = tensor.detach().clone(memory_format=torch.contiguous_format)

    mon = trainmon.watch(model, optimizer, every=1, out=str(out), **settings)
    for window in range(STEPS):
        optimizer.zero_grad()
        given = torch.randn(8, 500, generator=torch.Generator().manual_seed(window))
        if settings.get("checks"):
            keep("input", window, "", given)
        model(given).backward()
        for name, parameter in model.named_parameters():
            keep("grad_reduced", window, name, parameter.grad)
            keep("param_origin", window, name, parameter)
        optimizer.step()
        for name, parameter in model.named_parameters():
            keep("param_updated", window, name, parameter)
            for kind in ("exp_avg", "exp_avg_sq"):
                keep(kind, window, name, optimizer.state[parameter][kind])
    mon.stop()
    return seen


def segment_of(out):
    (path,) = out.rglob("log-*.tmlog")
    return path


def checks_in(path):
    """{(window, name, kind): check} of tensors of training, and how many rows of each kind there are."""
    segment = log_decoder.decode(path.read_bytes())
    found, rows = {}, {}
    for batch in segment.batches:
        by_seq = {check["seq"]: check for check in batch.get("checks", [])}
        assert len(by_seq) == len(batch.get("checks", []))
        for row in batch["rows"]:
            series = segment.series[row["series"]]
            rows[series["kind"]] = rows.get(series["kind"], 0) + 1
            if (check := by_seq.pop(row["seq"], None)) is not None:
                if series["kind"] != "update":  # test_update.py
                    found[row["window"], series["name"], series["kind"]] = check
        assert not by_seq, "a check without its row"
    return found, rows


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    out = tmp_path_factory.mktemp("checks")
    return out, trained(out, kinds=["activations"], checks=True)


def test_every_row_has_the_fingerprint_and_the_sketch_of_its_tensor(recorded):
    out, seen = recorded
    found, rows = checks_in(segment_of(out))
    assert set(rows) == KINDS | {"update", "input", "actv", "actv_grad"}
    assert found.keys() == seen.keys() and {key[2] for key in found} == KINDS | {"input"}
    for key, tensor in seen.items():
        check = found[key]
        assert check["fingerprint"] == fingerprint(bytes_of(tensor)), key
        if key[2] in ("exp_avg_sq", "input"):
            assert check["sketch"] == []
            continue
        sums, sizes = sketch(tensor.double().numpy())
        rounding = 2.0**-24 * abs(sums) + 2.0**-19 * sizes * (tensor.dtype != torch.float32)
        assert (abs(check["sketch"] - sums) <= rounding + 1e-14 * sizes).all(), key


def test_compaction_keeps_them(recorded, tmp_path):
    seen = trained(tmp_path, kinds=["grads"], checks=True)
    before = checks_in(segment_of(tmp_path))
    assert before[0].keys() == seen.keys()
    compact = [launch.command_line(), "compact", os.fspath(tmp_path)]
    done = subprocess.run(compact, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    after = checks_in(segment_of(tmp_path))
    assert before == after
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["evidence"]["gap"] == {"fingerprints": 2 * 4}


def test_a_log_with_checks_is_at_most_two_and_a_half_times_as_long(tmp_path):
    kinds = ["grads", "weights", "moments", "update", "input"]
    sizes = []
    for name, checks in (("without", False), ("with", True)):
        trained(tmp_path / name, kinds=kinds, checks=checks)
        sizes.append(segment_of(tmp_path / name).stat().st_size)
    without, with_checks = (log_decoder.decode(segment_of(tmp_path / name).read_bytes())
                            for name in ("without", "with"))  # fmt: skip
    assert all("checks" not in batch for batch in without.batches)
    assert sum(len(batch["rows"]) for batch in without.batches) == sum(
        len(batch["rows"]) for batch in with_checks.batches
    )
    assert sizes[0] < sizes[1] <= 2.5 * sizes[0]


def test_what_has_no_check_is_named(tmp_path, monkeypatch):
    trained(tmp_path / "none", kinds=["grads", "weights"])
    with monkeypatch.context() as patched:
        patched.setattr(Late, "_check", lambda self, series, tensor, scale, state: check_ops.none(
            state.device, state.dtype))  # fmt: skip
        trained(tmp_path / "ops", kinds=["grads"], checks=True, backend="ops")
    why = {}
    for name in ("none", "ops"):
        (one,) = [x for x in trainmon.diagnose(str(tmp_path / name))["not_checked"]
                  if "fingerprints" in x["check"]]  # fmt: skip
        why[name] = one["why"]
    assert "checks=True" in why["none"]
    assert why["ops"].startswith("not recorded of large, ")  # checks=True is set


def test_the_operations_of_the_framework_give_the_same(recorded, tmp_path):
    seen = trained(tmp_path, kinds=["activations"], checks=True, backend="ops")
    of_core = checks_in(segment_of(recorded[0]))[0]
    found, rows = checks_in(segment_of(tmp_path))
    assert set(rows) == KINDS | {"input", "actv", "actv_grad"}
    assert found.keys() == seen.keys()
    for key, check in found.items():
        tensor = seen[key]
        assert check["fingerprint"] == fingerprint(bytes_of(tensor)), key
        assert check["fingerprint"] == of_core[key]["fingerprint"], key
        if key[2] in ("exp_avg_sq", "input"):
            assert check["sketch"] == []
            continue
        sums, sizes = sketch(tensor.double().numpy())
        assert (abs(check["sketch"] - sums) <= 2.0**-24 * abs(sums) + 1e-14 * sizes).all(), key
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None and answer["findings"] == []
    assert answer["evidence"]["gap"] == {"fingerprints": 2 * 4}
    assert answer["evidence"]["exp_avg"] == {"sketches": 2 * 4}
    assert not any("fingerprints" in one["check"] for one in answer["not_checked"])


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operations_on_any_part_of_any_tensor(dtype, monkeypatch):
    monkeypatch.setattr(check_ops, "CHUNK", 3000)
    generator = torch.Generator().manual_seed(3)
    whole = (torch.randn(40, 300, generator=generator) * 10).to(dtype)
    cases = [(whole, 0), (whole.t(), 7), (whole[1:, 3:], 12345), (whole[:, :1].expand(40, 9), 64)]
    cases += [(whole.reshape(-1)[at : at + n], first)
              for at, n, first in ((1, 1, 0), (3, 2999, 4096), (5, 9001, 257), (0, 0, 5))]  # fmt: skip
    for tensor, first in cases:
        found = check_ops.check(tensor, first, None, torch.float64).tolist()
        assert len(found) == CHECK_COLUMNS and found[0] == 1.0
        before = bytes(first * tensor.element_size())
        pieces = sum(int(piece) << 16 * i for i, piece in enumerate(found[1:5]))
        assert pieces == fingerprint(before + bytes_of(tensor)), (dtype, tensor.shape, first)
        values = np.concatenate([np.zeros(first), tensor.double().numpy().ravel()])
        sums, sizes = sketch(values)
        assert (abs(np.array(found[5:]) - sums) <= 1e-14 * sizes).all(), (dtype, first)


def test_a_loss_scale_divides_the_sketch_alone():
    tensor = torch.randn(700)
    plain = check_ops.check(tensor, 0, None, torch.float64)
    scaled = check_ops.check(tensor, 0, torch.tensor(8.0), torch.float64)
    assert torch.equal(plain[:5], scaled[:5]) and torch.equal(plain[5:], scaled[5:] * 8.0)


def test_a_value_that_is_not_finite_changes_one_sum():
    tensor = torch.ones(700)
    tensor[77] = float("nan")
    finite = check_ops.check(tensor, 0, None, torch.float64)[5:].isfinite().tolist()
    assert finite == [i != 77 % 8 for i in range(8)]


def test_checks_is_a_key_of_configurations(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"checks": True, "out": str(tmp_path / "run"), "every": 1}))
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with trainmon.watch(model, optimizer, config=path):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    found, _ = checks_in(segment_of(tmp_path / "run"))
    assert {key[2] for key in found} == {
        "grad_reduced", "param_origin", "param_updated", "momentum_buffer", "input",
    }  # fmt: skip


@pytest.mark.parametrize("mode", versions.marked(["fsdp2"]))
def test_fingerprints_of_shards_add_up_to_that_of_the_whole(mode, tmp_path):
    launch.run("checks_shards.py", tmp_path, ranks=2)
    shards = [checks_in(path)[0] for path in sorted((tmp_path / "run").rglob("log-*.tmlog"))]
    assert len(shards) == 2
    full = torch.load(tmp_path / "full.pt")
    assert len(full) == 3 * 4
    for (window, name), tensor in full.items():
        parts = [shard[window, name, "param_origin"] for shard in shards]
        assert len({part["fingerprint"] for part in parts}) == 2
        whole = sum(part["fingerprint"] for part in parts) & M64
        assert whole == fingerprint(bytes_of(tensor)), (window, name)
        sums, sizes = sketch(tensor.double().numpy())
        found = np.sum([part["sketch"] for part in parts], axis=0)
        assert (abs(found - sums) <= 2.0**-22 * sizes).all()
    answer = trainmon.diagnose(str(tmp_path / "run"))
    assert answer["verdict"] is None and answer["findings"] == []
    assert set(answer["evidence"]["gap"]) == {"fingerprints"}
    assert set(answer["evidence"]["exp_avg"]) == {"sketches"}
    assert answer["evidence"]["update"] == {"sketches": 2 * 3 * 4}
    assert not any("fingerprints" in one["check"] for one in answer["not_checked"])


@pytest.mark.parametrize("checks", [True, False])
def test_a_network_that_another_is_copied_into_is_only_noticed(checks, tmp_path):
    """As the target of a DQN, or a momentum encoder: it has no gradient."""
    torch.manual_seed(0)
    online, target = (torch.nn.Linear(6, 3) for _ in range(2))
    target.requires_grad_(False).load_state_dict(online.state_dict())
    model = torch.nn.ModuleDict({"online": online, "target": target})
    optimizer = torch.optim.AdamW(online.parameters(), lr=0.01)
    kinds = ["grads", "weights", "moments"]
    with trainmon.watch(model, optimizer, kinds=kinds, checks=checks, every=1, out=tmp_path):
        for step in range(16):
            if step > 0 and step % 5 == 0:
                target.load_state_dict(online.state_dict())
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            (online(x) - 0.9 * target(x.flip(0))).square().mean().backward()
            optimizer.step()
    answer = trainmon.diagnose(tmp_path)
    assert answer["verdict"] is None, answer["verdict"]
    noticed = {(f["check"], tensor) for f in answer["findings"] for tensor in f["tensors"]}
    assert {("gap", "target.weight"), ("gap", "target.bias")} <= noticed


def test_a_bit_of_a_weight_that_is_trained_stays_certain(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    kinds = ["grads", "weights"]
    with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=tmp_path):
        for step in range(8):
            if step == 5:
                with torch.no_grad():
                    model.weight[1, 2] += 0.5
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    verdict = trainmon.diagnose(tmp_path)["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("gap", 5, ["weight"])
