# What trainings on a CUDA device do besides: scaled losses, compiled models, streams, memory that runs out,
# errors of the device, collectives. Against plain torch, or against the same training unwatched.
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import models
import trainmon

ALL = ["grads", "weights", "moments", "activations"]
HERE = pathlib.Path(__file__).resolve().parent
STEPS = 8


def gpt():
    torch.manual_seed(0)
    return models.Gpt(width=64, depth=2, heads=2, length=32, dropout=0.1).cuda()


def batch(step):
    data = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(step)).cuda()
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def rows(out, **chosen):
    table = trainmon.read(str(out), **chosen)
    columns = [table[name] for name in table]
    return [dict(zip(table, cells, strict=True)) for cells in zip(*columns, strict=True)]


def facts(out, name):
    return json.loads(next(pathlib.Path(out).rglob(name)).read_text())


def assert_healthy(out):
    health = facts(out, "health.json")
    assert health["rows_produced"] > 0 and not health["refused"] and not health["parts_off"], health


def watched(out, model, optimizer, **settings):
    if out is None:
        return contextlib.nullcontext()
    settings = {"kinds": ALL, "every": 1} | settings
    return trainmon.watch(model, optimizer, out=str(out), **settings)


def assert_same(bare, seen):
    for one, other in zip(bare, seen, strict=True):
        assert torch.equal(one, other)


# --- scaled losses -------------------------------------------------------------------------------


def scaled(out, fused, is_unscaled_by_hand, seen=None):
    """Step 3 overflows, so that the scaler skips it."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused, foreach=not fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    with watched(out, model, optimizer, checks=True) as monitor:
        for step in range(STEPS):
            ids, target = batch(step)
            with torch.autocast("cuda", torch.float16):
                loss = models.loss_of(model(ids), target)
            scaled_loss = scaler.scale(loss)
            (scaled_loss * float("inf") if step == 3 else scaled_loss).backward()
            if seen is not None:
                scale = scaler.get_scale()
                for name, parameter in model.named_parameters():
                    seen[step, name] = parameter.grad.double().norm().item() / scale
            if is_unscaled_by_hand:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    del monitor
    return [p.detach().clone() for p in model.parameters()] + [torch.cuda.get_rng_state()]


@pytest.mark.parametrize("is_unscaled_by_hand", [False, True], ids=["by step()", "by unscale_()"])
@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_gradients_of_a_scaled_loss(fused, is_unscaled_by_hand, tmp_path):
    expected = {}
    bare = scaled(None, fused, is_unscaled_by_hand, expected)
    assert_same(bare, scaled(tmp_path, fused, is_unscaled_by_hand))
    assert_healthy(tmp_path)
    table = rows(tmp_path, kinds=["grad_reduced"])
    found = {(r["step"], r["attempt"], r["name"]): r for r in table}
    for (step, name), norm in expected.items():
        if step != 3:  # which the scaler skips: the next one is an attempt of the same step
            row = found[step - (step > 3), int(step == 4), name]
            assert abs(row["norm"] - norm) <= 1e-6 * max(norm, 1e-12), (step, name)
    assert trainmon.diagnose(str(tmp_path))["verdict"] is None


# --- diagnose: right trainings have no verdict ---------------------------------------------------

OPTIMIZERS = {
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "foreach adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True, weight_decay=0.01),
    "capturable adamw": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(1e-3).cuda(), capturable=True
    ),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_verdict_on_a_right_training(name, dtype, tmp_path):
    model = gpt().to(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    with watched(tmp_path, model, optimizer, checks=True):
        for step in range(STEPS):
            optimizer.zero_grad()
            models.loss_of(model(batch(step)[0]).float(), batch(step)[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]
    assert not answer["findings"], json.dumps(answer["findings"], indent=1)
    assert_healthy(tmp_path)


# --- compiled models -----------------------------------------------------------------------------


def compiled(out, mode, inside=False):
    torch._dynamo.reset()
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with watched(out, model, optimizer, inside_compiled=inside):
        ready = torch.compile(model, mode=mode)
        for step in range(STEPS):
            ids, target = batch(step)
            if mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            loss = models.loss_of(ready(ids), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
    return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_model(mode, inside, tmp_path):
    """Its gradients and weights have rows in each step; what of its activations has none is said."""
    bare, weights = compiled(None, mode)
    losses, last = compiled(tmp_path, mode, inside)
    if inside:  # then Inductor fuses less
        for one, other in zip(bare, losses, strict=True):
            assert torch.allclose(one, other, rtol=1e-3)
    else:
        assert_same(bare, losses)
    assert_healthy(tmp_path)
    table = rows(tmp_path, kinds=["grad_reduced", "param_updated"])
    for kind in ("grad_reduced", "param_updated"):
        steps = sorted(r["step"] for r in table if (r["kind"], r["name"]) == (kind, "head.weight"))
        assert steps == list(range(STEPS))
    for row in table:
        if row["kind"] == "param_updated" and row["step"] == STEPS - 1:
            norm = last[row["name"]].double().norm().item()
            assert abs(row["norm"] - norm) <= 1e-10 * norm, row["name"]
    if mode is None and inside:
        inner = [r for r in rows(tmp_path, kinds=["actv"]) if r["name"] == "blocks.0.up"]
        assert {r["step"] for r in inner} == set(range(STEPS))


# --- streams, memory, errors ---------------------------------------------------------------------


def on_a_stream(out):
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    norms = []
    with watched(out, model, optimizer):
        for step in range(STEPS):
            ids, target = batch(step)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                models.loss_of(model(ids), target).backward()
                norms.append(model.head.weight.grad.double().norm())
                if step % 2:
                    optimizer.step()
            torch.cuda.current_stream().wait_stream(side)
            if not step % 2:
                optimizer.step()
            optimizer.zero_grad()
    return [*norms, *(p.detach().clone() for p in model.parameters())]


def test_a_stream_of_the_users_own(tmp_path):
    bare = on_a_stream(None)
    seen = on_a_stream(tmp_path)
    assert_same(bare, seen)
    table = rows(tmp_path, kinds=["grad_reduced"])
    found = {r["step"]: r["norm"] for r in table if r["name"] == "head.weight"}
    for step in range(STEPS):
        assert abs(found[step] - seen[step].item()) <= 1e-12 * found[step], step
    assert_healthy(tmp_path)


@pytest.mark.parametrize("reread", [True, False])
def test_memory_of_torch_is_as_unwatched(reread, tmp_path):
    """What torch hands out: at its most, and after all."""
    found = []
    for out in (None, tmp_path):
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with watched(out, model, optimizer, reread=reread):
            for step in range(4):
                if step == 2:
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_stats()
                ids, target = batch(step)
                models.loss_of(model(ids), target).backward()
                optimizer.step()
                optimizer.zero_grad()
            after = torch.cuda.memory_stats()
        names = ("allocated_bytes.all.peak", "active_bytes.all.current")
        found.append([after[name] - before[name] * ("peak" not in name) for name in names])
        del model, optimizer
    assert found[0] == found[1]


def test_a_tensor_that_is_read_once_has_the_rows_of_one_that_is_read_each_time(tmp_path):
    tables, launches = [], []
    for reread in (True, False):
        out = tmp_path / str(reread)
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with watched(out, model, optimizer, kinds=["activations"], reread=reread):
            kinds = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=kinds) as profile:
                for step in range(2):
                    models.loss_of(model(batch(step)[0]), batch(step)[1]).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                torch.cuda.synchronize()
        assert_healthy(out)
        launches.append(sum("trainmon_measure" in event.name for event in profile.events()))
        keys = ("kind", "name", "element", "step", "call")
        tables.append({tuple(r[key] for key in keys): r for r in rows(out)})
    assert tables[0].keys() == tables[1].keys()
    for key, row in tables[0].items():
        for name in ("count", "norm", "mean", "min", "max", "zeros", "nans"):
            assert tables[1][key][name] == row[name], (key, name)
    assert launches[0] == len(tables[0]) and launches[1] < 0.8 * launches[0], launches


def test_no_row_is_missed_where_the_host_is_far_ahead(tmp_path):
    """More tensors wait for the device than there is room for states of their chunks."""
    model = nn.Sequential(*(nn.Identity() for _ in range(300)), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(6_000_000, 8, device="cuda")
    with watched(tmp_path, model, optimizer, kinds=["actv"]):
        torch.cuda._sleep(1_000_000_000)  # half a second
        model(x)
        torch.cuda.synchronize()
        optimizer.step()
    assert_healthy(tmp_path)
    assert len(rows(tmp_path)) >= 2 * 301


def test_memory_that_runs_out_in_a_step_which_is_tried_again(tmp_path):
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tries = 0
    with watched(tmp_path, model, optimizer, checks=True):
        for step in range(STEPS):
            for attempt in range(2):
                tries += 1
                try:
                    loss = models.loss_of(model(batch(step)[0]), batch(step)[1])
                    if step == 4 and attempt == 0:
                        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
                    loss.backward()
                    break
                except torch.cuda.OutOfMemoryError:
                    optimizer.zero_grad()
                    torch.cuda.empty_cache()
            optimizer.step()
            optimizer.zero_grad()
    assert tries == STEPS + 1
    assert_healthy(tmp_path)
    assert {r["step"] for r in rows(tmp_path, kinds=["grad_reduced"])} == set(range(STEPS))
    assert trainmon.diagnose(str(tmp_path))["verdict"] is None


def run(program, *args, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


TRAINING = """
import sys, torch, trainmon, models
model = models.Gpt(width=64, depth=2, heads=2, length=32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kinds = ["grads", "weights", "moments", "activations"]
monitor = trainmon.watch(model, optimizer, kinds=kinds, every=1, out=sys.argv[1])
for step in range(6):
    ids = torch.randint(0, 256, (4, 32), device="cuda")
    if step == 3 and "assert" in sys.argv:
        ids[0, 0] = 300  # the device's own assertion: every later call fails
    models.loss_of(model(ids), ids % 256).backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    torch.cuda.synchronize()
finally:
    monitor.stop()
    print("ended")
"""


def test_an_error_of_the_device_ends_training_with_its_own_error_and_soon(tmp_path):
    ended = run(TRAINING, tmp_path, "assert")
    assert ended.returncode == 1 and "ended" in ended.stdout, (ended, ended.stderr[-2000:])
    assert "device-side assert" in ended.stderr, ended.stderr[-2000:]
    table = rows(tmp_path, kinds=["grad_reduced"])
    assert {0, 1} <= {r["step"] for r in table}


@pytest.mark.parametrize(
    "settings",
    [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {"CUDA_LAUNCH_BLOCKING": "1"}],
    ids=str,
)
def test_settings_of_the_environment(settings, tmp_path):
    ended = run(TRAINING, tmp_path, **settings)
    assert ended.returncode == 0 and "ended" in ended.stdout, ended.stderr[-2000:]
    assert_healthy(tmp_path)
    assert {r["step"] for r in rows(tmp_path, kinds=["actv"])} == set(range(6))


# --- collectives ---------------------------------------------------------------------------------

SPREAD = """
import os, sys, torch, torch.distributed as dist, trainmon, models
backend, way, out, meeting, rank, ranks = sys.argv[1:]
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks)
rank, ranks = int(rank), int(ranks)
torch.cuda.set_device(0)
dist.init_process_group(backend, init_method="file://" + meeting, rank=rank, world_size=ranks)
torch.manual_seed(0)
model = models.Gpt(width=64, depth=2, heads=2, length=32, dropout=0.0).cuda()
if way == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
else:
    from torch.distributed.fsdp import fully_shard
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kinds = ["grads", "weights", "moments", "activations"]
monitor = trainmon.watch(model, optimizer, kinds=kinds, checks=True, every=1, out=out)
torch.manual_seed(rank + 1)
for step in range(8):
    ids = torch.randint(0, 256, (4, 32)).cuda()
    models.loss_of(model(ids), ids).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
monitor.stop()
dist.destroy_process_group()
print("ended")
"""


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
@pytest.mark.parametrize("backend, ranks", [("nccl", 1), ("gloo", 2)])
def test_trainings_of_several_processes_have_no_verdict(backend, ranks, way, tmp_path):
    """Two ranks of NCCL refuse to share one device."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SPREAD, backend, way]
            + [str(tmp_path / "run"), str(tmp_path / "meeting"), str(rank), str(ranks)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in started:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0 and "ended" in out, err[-3000:]
    answer = trainmon.diagnose(str(tmp_path / "run"))
    assert answer["verdict"] is None, answer["verdict"]
    assert_healthy(tmp_path / "run")
    kinds = {r["kind"] for r in rows(tmp_path / "run")}
    assert {"grad_reduced", "param_updated", "exp_avg", "actv"} <= kinds


# --- samples and the gradient probe --------------------------------------------------------------


def test_sampled_activations_are_near_the_whole_ones(tmp_path):
    found = []
    for sample in (None, "1/16"):
        out = tmp_path / str(sample).replace("/", "_")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        settings = {"kinds": ["activations"]} | ({"sample": sample} if sample else {})
        with watched(out, model, optimizer, **settings):
            for step in range(3):
                x = torch.randn(1024, 512, generator=torch.Generator().manual_seed(step)).cuda()
                F.mse_loss(model(x), x).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert_healthy(out)
        found.append({(r["kind"], r["name"], r["element"], r["step"]): r for r in rows(out)})
    whole, sampled = found
    assert whole.keys() == sampled.keys()
    for key, row in sampled.items():
        assert row["count"] == whole[key]["count"], key
        assert abs(row["norm"] - whole[key]["norm"]) <= 0.1 * whole[key]["norm"], key


def test_the_gradient_probe_writes_what_it_writes_of_the_cpu(tmp_path):
    written = []
    for device in ("cpu", "cuda"):
        model = nn.Linear(300, 200, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        settings = {"out": tmp_path / device, "level": "L2", "bounds": [-0.1, 0, 0.1]}
        with trainmon.GradProbe(model, optimizer, **settings) as probe:
            for step in range(2):
                generator = torch.Generator().manual_seed(step)
                for parameter in model.parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator).to(device)
                optimizer.step()
        folder = pathlib.Path(probe.directory)
        files = [f for end in ("*.csv", "*.dir", "*.pt", "*.npy") for f in folder.rglob(end)]
        written.append({str(f.relative_to(folder)): f.read_bytes() for f in files})
    assert written[0] == written[1] and written[0]
