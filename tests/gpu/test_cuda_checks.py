# What checks=True records of tensors on a CUDA device: fingerprints and sketches as docs/formats.md defines them.
import contextlib
import subprocess

import numpy as np
import pytest
import torch

import launch
import test_checks as on_cpu
import trainmon
from trainmon.torch.measuring import check_ops

CHUNK_BYTES = 131072  # boundaries of the sums lie here; a wrong guess only makes the tests weaker
STEPS = 3


class Tensors(torch.nn.Module):
    """A parameter for each tensor that is given; the loss is linear in all of them."""

    def __init__(self, tensors):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.nn.Parameter(tensor) for tensor in tensors)

    def forward(self):
        return sum((parameter.float() ** 2).sum() for parameter in self.all)


def drawn(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype).cuda()


def tensors():
    """Of every dtype that autograd takes, around vectors, blocks and chunks; other orders of memory."""
    made = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        item = dtype.itemsize
        for n in (1, 7, 255, 4096, 5000, CHUNK_BYTES // item - 1, CHUNK_BYTES // item + 3):
            made.append(drawn((n,), dtype, n))
    made.append(drawn((33 * CHUNK_BYTES // 4 + 5,), torch.float32, 1))  # two groups of chunks
    made.append(drawn((40, 60), torch.float32, 2).t())
    filters = drawn((8, 6, 3, 3), torch.float32, 3)
    made.append(filters.to(memory_format=torch.channels_last))
    made.append(drawn((40, 60), torch.bfloat16, 4)[:, 3:17])
    for offset in (1, 2, 3):  # not on sixteen bytes
        made.append(drawn((3000,), torch.float32, 5)[offset:])
    return made


def trained(out, checks=True, backend="auto"):
    """What the parameters were before each step, by window and name."""
    model = Tensors(tensors())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)  # for float16
    seen = {}
    settings = {"kinds": ["grads", "weights", "moments"], "every": 1, "out": str(out)}
    with trainmon.watch(model, optimizer, checks=checks, backend=backend, **settings):
        for window in range(STEPS):
            optimizer.zero_grad()
            model().backward()
            for name, parameter in model.named_parameters():
                seen[window, name, "param_origin"] = parameter.detach().clone()
                seen[window, name, "grad_reduced"] = parameter.grad.detach().clone()
            optimizer.step()
            for name, parameter in model.named_parameters():
                seen[window, name, "param_updated"] = parameter.detach().clone()
                for kind in ("exp_avg", "exp_avg_sq"):
                    seen[window, name, kind] = optimizer.state[parameter][kind].clone()
    return {key: tensor.cpu().contiguous() for key, tensor in seen.items()}


@pytest.fixture(scope="module", params=["auto", "ops"])
def recorded(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("checks")
    return out, trained(out, backend=request.param)


def test_every_row_has_the_fingerprint_and_the_sketch_of_its_tensor(recorded):
    out, seen = recorded
    found, rows = on_cpu.checks_in(on_cpu.segment_of(out))
    assert found.keys() == seen.keys()
    for key, tensor in seen.items():
        check = found[key]
        assert check["fingerprint"] == on_cpu.fingerprint(on_cpu.bytes_of(tensor)), key
        if key[2] == "exp_avg_sq":
            assert check["sketch"] == []
            continue
        sums, sizes = on_cpu.sketch(tensor.double().numpy())
        assert (abs(check["sketch"] - sums) <= 2.0**-24 * abs(sums) + 1e-13 * sizes).all(), key


def test_diagnose_compares_fingerprints_and_finds_nothing(recorded):
    answer = trainmon.diagnose(str(recorded[0]))
    assert answer["verdict"] is None
    assert set(answer["evidence"]["gap"]) == {"fingerprints"}
    assert set(answer["evidence"]["exp_avg"]) == {"sketches"}
    assert not any("fingerprints" in one["check"] for one in answer["not_checked"])


def test_a_bit_that_is_flipped_between_two_steps_is_found(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 200).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=tmp_path):
        for step in range(8):
            if step == 5:
                with torch.no_grad():
                    model.weight.view(torch.int32)[17, 3] ^= 1
            optimizer.zero_grad()
            model(torch.randn(8, 300, device="cuda")).square().mean().backward()
            optimizer.step()
    verdict = trainmon.diagnose(tmp_path)["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("gap", 5, ["weight"])
    asked = subprocess.run([launch.command_line(), "diagnose", str(tmp_path)], timeout=100)
    assert asked.returncode == 1


def test_states_are_those_without_checks(tmp_path):
    """Bit by bit: the kernel with checks adds in the order of the one without."""
    read = []
    for checks in (False, True):
        trained(tmp_path / str(checks), checks=checks)
        table = trainmon.read(str(tmp_path / str(checks)), kinds=["param_origin", "exp_avg"])
        order = np.lexsort((table["name"], table["kind"], table["step"]))
        names = ("mean", "std", "norm", "min", "max", "zeros")
        read.append([np.asarray(table[name])[order] for name in names])
    for without, with_checks in zip(*read, strict=True):
        assert np.array_equal(without, with_checks, equal_nan=True)


def losses_of(model, optimizer, batches):
    """After two steps, in which memory is taken, a wait of the host is an error."""
    losses = []
    try:
        for step, x in enumerate(batches):
            if step == 2:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return losses


@pytest.mark.parametrize("backend", ["auto", "ops"])
def test_training_is_the_same_and_nothing_waits(backend, tmp_path):
    batches = torch.randn(6, 8, 64, generator=torch.Generator().manual_seed(2)).cuda()
    results = []
    for is_watched in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        watched = contextlib.nullcontext()
        if is_watched:
            out = str(tmp_path)
            watched = trainmon.watch(model, optimizer, checks=True, backend=backend, out=out)
        with watched:
            losses = losses_of(model, optimizer, batches)
        results.append(losses + [parameter.detach() for parameter in model.parameters()])
    for plain, seen in zip(*results, strict=True):
        assert torch.equal(plain, seen)


@pytest.mark.parametrize("dtype", on_cpu.DTYPES, ids=str)
def test_operations_give_on_the_device_what_they_give_on_the_cpu(dtype):
    tensor = (torch.randn(5000) * 10).to(dtype)
    on_device = tensor.cuda()
    check_ops.check(on_device, 77, None, torch.float64)  # constants are made once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = check_ops.check(on_device, 77, None, torch.float64)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = check_ops.check(tensor, 77, None, torch.float64)
    assert found[:5].tolist() == wanted[:5].tolist()
    assert torch.allclose(found[5:].cpu(), wanted[5:], rtol=1e-12, atol=1e-9)
