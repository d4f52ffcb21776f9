# watch() on a CUDA device: values, invisibility, no waiting, one launch, graphs.
import contextlib
import itertools
import json
import pathlib

import pytest
import torch
from torch import nn

import models
import trainmon

ALL = ["grads", "weights", "moments", "activations"]


def trainer(seed=0, width=64):
    torch.manual_seed(seed)
    model = models.Gpt(width=width, depth=2, heads=2, length=32, dropout=0.1).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches(n, seed=1):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (n, 4, 33), generator=generator).cuda()
    return [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in data]


def step(model, optimizer, batch):
    ids, target = batch
    loss = models.loss_of(model(ids), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def rows(out, **chosen):
    table = trainmon.read(out, **chosen)
    columns = [table[name] for name in table]
    return [dict(zip(table, cells, strict=True)) for cells in zip(*columns, strict=True)]


def test_every_row_equals_plain_torch(tmp_path):
    model, optimizer = trainer()
    expected = {}

    def note(kind, name, step, x):
        x = x.detach().double()
        expected[kind, name, step] = (x.numel(), x.norm().item(), x.min().item(), x.max().item())

    now = itertools.count()
    current = [0]

    def forward_hook(name):
        def hook(module, args, output):
            note("actv", name, current[0], output)
            if output.requires_grad:
                output.register_hook(lambda g: note("actv_grad", name, current[0], g))

        return hook

    with trainmon.watch(model, optimizer, kinds=ALL, out=str(tmp_path), input_grads=False):
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(forward_hook(name))

        def before(opt, args, kwargs):
            for name, p in model.named_parameters():
                note("grad_reduced", name, current[0], p.grad)
                note("param_origin", name, current[0], p)

        def after(opt, args, kwargs):
            for name, p in model.named_parameters():
                note("param_updated", name, current[0], p)
                note("exp_avg", name, current[0], opt.state[p]["exp_avg"])

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        for batch in batches(4):
            current[0] = next(now)
            step(model, optimizer, batch)
        torch.cuda.synchronize()
    run = json.loads(next(pathlib.Path(tmp_path).rglob("run.json")).read_text())
    assert run["notes"]["devices"] == {"cuda:0": "kernels"}, run
    seen = 0
    for row in rows(str(tmp_path)):
        key = (row["kind"], row["name"], row["step"])
        if key not in expected or row["element"] not in ("", "output"):
            continue
        count, norm, low, high = expected[key]
        assert row["count"] == count, key
        assert abs(row["norm"] - norm) <= 1e-10 * max(norm, 1e-30), key
        assert row["min"] == low and row["max"] == high, key
        seen += 1
    assert seen == len(expected), (seen, len(expected))


def run_training(steps, watch, amp=False):
    model, optimizer = trainer()
    losses = []
    scope = watch(model, optimizer) if watch else contextlib.nullcontext()
    with scope:
        for batch in batches(steps):
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                losses.append(step(model, optimizer, batch))
    torch.cuda.synchronize()
    weights = [p.detach().clone() for p in model.parameters()]
    return torch.stack(losses), weights, torch.cuda.get_rng_state()


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "bfloat16 autocast"])
def test_training_is_the_same_bit_by_bit(tmp_path, amp):
    torch.use_deterministic_algorithms(True)
    try:
        bare = run_training(20, None, amp)
        seen = run_training(
            20, lambda m, o: trainmon.watch(m, o, kinds=ALL, out=str(tmp_path)), amp
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(bare[0], seen[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], seen[1], strict=True))
    assert torch.equal(bare[2], seen[2])


def test_nothing_waits_for_the_device(tmp_path):
    model, optimizer = trainer()
    data = batches(6)
    with trainmon.watch(model, optimizer, kinds=ALL, out=str(tmp_path)):
        step(model, optimizer, data[0])
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in data[1:]:
                step(model, optimizer, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    health = json.loads(next(pathlib.Path(tmp_path).rglob("health.json")).read_text())
    assert health["rows_produced"] > 0 and not health["refused"] and not health["parts_off"], health
    assert [sink["rows_written"] for sink in health["sinks"]] == [health["rows_produced"]]


@pytest.mark.parametrize("number", [1, 4, 5, 100, 5000])
def test_one_launch_for_any_number_of_tensors(tmp_path, number):
    parameters = nn.ParameterList(
        nn.Parameter(torch.randn(1 + i * 37 % 3000, device="cuda")) for i in range(number)
    )
    parameters.append(nn.Parameter(torch.randn(3_000_000, device="cuda", dtype=torch.bfloat16)))
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    with trainmon.watch(parameters, optimizer, kinds=["grads"], out=str(tmp_path)):
        for p in parameters:
            p.grad = torch.ones_like(p)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            optimizer.step()
            torch.cuda.synchronize()
    launches = [e for e in profile.events() if "trainmon_measure" in e.name]
    assert len(launches) == 1, [e.name for e in launches]
    table = rows(str(tmp_path), kinds=["grad_reduced"])
    assert len(table) == number + 1


def test_a_bad_value_is_found(tmp_path):
    model, optimizer = trainer()
    with trainmon.watch(model, optimizer, kinds=["grads"], out=str(tmp_path)) as monitor:
        for i, batch in enumerate(batches(5)):
            ids, target = batch
            models.loss_of(model(ids), target).backward()
            if i == 3:
                next(model.parameters()).grad[0, 0] = float("nan")
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    assert monitor is not None
    bad = [r for r in rows(str(tmp_path), kinds=["grad_reduced"]) if r["nans"] > 0]
    assert bad and min(r["step"] for r in bad) == 3


def test_a_captured_step_is_recorded_at_every_replay(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(32, 64, device="cuda")
    inputs = torch.randn(103, 32, 64, device="cuda")

    def one():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with trainmon.watch(model, optimizer, kinds=["grads", "activations"], out=str(tmp_path)):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(3):
                x.copy_(inputs[i])
                optimizer.zero_grad(set_to_none=True)
                one()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            one()
        norms = []
        for i in range(3, 103):
            x.copy_(inputs[i])
            graph.replay()
            norms.append(model[0].weight.grad.double().norm())
        torch.cuda.synchronize()
        norms = [norm.item() for norm in norms]
    table = [r for r in rows(str(tmp_path), kinds=["grad_reduced"]) if r["name"] == "0.weight"]
    assert sorted(r["step"] for r in table) == list(range(103))
    by_step = {r["step"]: r["norm"] for r in table}
    for i, norm in enumerate(norms):
        assert abs(by_step[i + 3] - norm) <= 1e-12 * norm, i
    outputs = [
        r
        for r in rows(str(tmp_path), kinds=["actv"])
        if r["name"] == "2" and r["element"] == "output"
    ]
    assert sorted(r["step"] for r in outputs) == list(range(103))


def test_a_captured_forward_and_backward_with_an_eager_optimizer(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(32, 64, device="cuda")
    with trainmon.watch(model, optimizer, kinds=["grads", "activations"], out=str(tmp_path)):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=False)
                model(x).square().mean().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=False)
        with torch.cuda.graph(graph):
            model(x).square().mean().backward()
        for _ in range(20):
            optimizer.zero_grad(set_to_none=False)
            graph.replay()
            optimizer.step()
        torch.cuda.synchronize()
    grads = [r for r in rows(str(tmp_path), kinds=["grad_reduced"]) if r["name"] == "0.weight"]
    assert sorted(r["step"] for r in grads) == list(range(23))
    seen = [
        r
        for r in rows(str(tmp_path), kinds=["actv"])
        if r["name"] == "2" and r["element"] == "output"
    ]
    assert sorted(r["step"] for r in seen) == list(range(23))


def test_the_framework_operations_give_the_same(tmp_path):
    tables = []
    for backend in ("auto", "ops"):
        model, optimizer = trainer()
        out = str(tmp_path / backend)
        with trainmon.watch(model, optimizer, kinds=ALL, out=out, backend=backend):
            for batch in batches(3):
                step(model, optimizer, batch)
            torch.cuda.synchronize()
        tables.append(
            {
                (r["kind"], r["name"], r["element"], r["step"], r["accum"], r["call"]): r
                for r in rows(out)
            }
        )
    assert tables[0].keys() == tables[1].keys()
    for key, row in tables[0].items():
        other = tables[1][key]
        for name in ("count", "nans", "zeros", "min", "max", "subnormals"):
            assert row[name] == other[name], (key, name)
        assert abs(row["norm"] - other["norm"]) <= 1e-9 * max(other["norm"], 1e-30), key
