# Promise 1: training is bit-identical watched and not, and stop() leaves nothing behind.
import gc
import json
import weakref

import pytest
import torch

import launch
import marks
import models
import trainmon
import versions
from long_form import how_often

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]
SEEN_KINDS = {
    "grad_unreduced",
    "grad_reduced",
    "param_origin",
    "param_updated",
    "exp_avg",
    "exp_avg_sq",
    "actv",
    "actv_grad",
}
STEPS = how_often(8, 50)


def differences(case):
    """(what, first step) for everything that was not the same watched and bare."""
    found = {}
    for what, bare in case["bare"].items():
        watched = case["watched"][what]
        assert len(bare) == len(watched) > 0
        unequal = [step for step, pair in enumerate(zip(bare, watched)) if pair[0] != pair[1]]
        if unequal:
            found[what] = unequal[0]
    return found


def run(folder, mode, steps, *options):
    ranks = 1 if mode == "single" else 2
    launch.run("invisible_run.py", folder, mode, steps, *options, ranks=ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def assert_whole(health):
    """Nothing switched off, nothing refused, nothing lost."""
    assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    assert health["rows_pending"] == 0 and health["rows_produced"] > 0
    for sink in health["sinks"]:
        assert sink["rows_dropped"] == {} and not sink["degraded"]
        assert sink["rows_written"] == health["rows_produced"]


@pytest.mark.parametrize("mode", versions.marked(["single", "ddp", "fsdp2"]))
def test_training_is_bit_identical(mode, tmp_path):
    reports = run(tmp_path, mode, STEPS)
    changed = {}
    for rank, report in enumerate(reports):
        assert report.pop("code_changed") == [], "functions or classes were replaced"
        assert len(report) == 16
        for name, case in report.items():
            if differences(case):
                changed[f"{name} rank {rank}"] = differences(case)
            assert case["marks_watched"] == case["marks_bare"], f"{name}: left behind by stop()"
            assert_whole(case["health"])
    assert changed == {}
    # Equal because nothing was watched would be no proof: every kind has rows in every step.
    for name in reports[0]:
        table = trainmon.read_table(str(tmp_path / name))
        assert set(table["rank"]) == set(range(len(reports)))
        for rank in range(len(reports)):
            mine = table["rank"] == rank
            assert set(table["step"][mine]) == set(range(STEPS))
            seen = {(k, s) for k, s in zip(table["kind"][mine], table["step"][mine])}
            assert {(k, s) for k in SEEN_KINDS for s in range(STEPS)} <= seen, name
            gradients = table["element"][mine & (table["kind"] == "actv_grad")]
            assert any(e.startswith("input") for e in gradients)
            assert any(e.startswith("output") for e in gradients)


@pytest.mark.parametrize(
    "mutant, shows_in",
    [
        ("torch", "torch"),
        ("numpy", "numpy"),
        ("python", "python"),
        ("scale", "gradients"),
    ],
)
def test_the_comparison_sees_a_planted_mutant(mutant, shows_in, tmp_path):
    (report,) = run(tmp_path, "single", 8, "--mutant", mutant, "--only", "gpt", "fp32", "1")
    found = differences(report["gpt-fp32-1"])
    assert found.get(shows_in) == 4  # at the very step it was planted in
    assert min(found.values()) == 4


@pytest.mark.parametrize("mode", versions.marked(["ddp", "fsdp2"]))
def test_ranks_need_not_agree(mode, tmp_path):
    """No collective call: one rank may watch alone, and none waits for the other."""
    reports = run(tmp_path, mode, 8, "--only", "gpt", "fp32", "4", "--alone")
    assert [report["gpt-fp32-4"]["health"] is None for report in reports] == [False, True]
    assert [differences(report["gpt-fp32-4"]) for report in reports] == [{}, {}]


def train_step(model, optimizer, name):
    data, target = models.draw(name)
    models.loss_of(model(data), target).backward()
    optimizer.step()
    optimizer.zero_grad()


def training(name):
    models.seed(3)
    model = models.build(name)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def watch(model, optimizer, out, **keys):
    return trainmon.watch(model, optimizer, kinds=KINDS, every=1, out=str(out), **keys)


@pytest.mark.parametrize("name", models.NAMES)
def test_every_touched_object_is_as_before(name, tmp_path):
    model, optimizer = training(name)
    for _ in range(2):  # so that what torch itself adds lazily is there
        train_step(model, optimizer, name)
    step, code = optimizer.step, marks.of_code()
    before = marks.of_objects(model, [optimizer])
    monitor = watch(model, optimizer, tmp_path)
    assert marks.of_objects(model, [optimizer]) != before
    for _ in range(3):
        train_step(model, optimizer, name)
    monitor.stop()
    assert marks.of_objects(model, [optimizer]) == before
    assert optimizer.step == step and "step" not in vars(optimizer)
    assert marks.changed(code, marks.of_code())[0] == []


@pytest.mark.parametrize(
    "moment", ["attached", "after forward", "after backward", "inside backward"]
)
def test_stop_at_any_moment_leaves_nothing(moment, tmp_path):
    model, optimizer = training("gpt")
    train_step(model, optimizer, "gpt")
    before = marks.of_objects(model, [optimizer])
    monitor = watch(model, optimizer, tmp_path)
    data, target = models.draw("gpt")
    if moment != "attached":
        loss = models.loss_of(model(data), target)
        if moment == "inside backward":
            handle = model.head.weight.register_hook(lambda _: monitor.stop() and None)
        if moment == "after forward":
            monitor.stop()
        loss.backward()
        if moment == "inside backward":
            handle.remove()
    monitor.stop()
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    after = marks.of_objects(model, [optimizer])
    if moment == "inside backward":  # the test's own hook left its empty dictionary
        for found in (before, after):
            found.pop("tensor head.weight _backward_hooks")
    assert after == before
    train_step(model, optimizer, "gpt")


def test_a_refused_config_leaves_nothing(tmp_path):
    model, optimizer = training("gpt")
    before = marks.of_objects(model, [optimizer])
    for keys in ({"every": 0}, {"evry": 1}, {"threads": -1, "queue_mb": "much"}):
        with pytest.raises((ValueError, TypeError)):
            trainmon.watch(model, optimizer, **{"out": str(tmp_path), **keys})
        assert marks.of_objects(model, [optimizer]) == before


def test_a_hundred_cycles_leave_no_trace(tmp_path):
    out = launch.run("cycles_run.py", tmp_path, 100)[0].out
    marked, objects_same, alive = json.loads(out.splitlines()[-1])
    assert objects_same
    assert alive == 0, "stopped monitors are still reachable"
    before, between, after = marked
    assert after["threads"] == before["threads"] and after["descriptors"] == before["descriptors"]
    spans = between["bytes"] - before["bytes"], after["bytes"] - between["bytes"]
    assert min(spans) < 2 << 20, spans


def test_no_tensor_outlives_its_moment(tmp_path):
    model, optimizer = training("gpt")
    monitor = watch(model, optimizer, tmp_path)
    kept = []

    def keep(module, inputs, output):
        kept.append(weakref.ref(output))
        output.register_hook(lambda gradient: kept.append(weakref.ref(gradient)))

    for module in model.modules():
        module.register_forward_hook(keep)
    gc.disable()  # nothing may wait for the collector either
    try:
        for _ in range(3):
            train_step(model, optimizer, "gpt")
        assert len(kept) > 100
        assert [ref() for ref in kept if ref() is not None] == []
    finally:
        gc.enable()
        monitor.stop()


def test_a_watched_model_is_freed(tmp_path):
    model, optimizer = training("tied")
    monitor = watch(model, optimizer, tmp_path)
    train_step(model, optimizer, "tied")
    monitor.stop()
    ends = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [end() for end in ends] == [None, None]


@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="a torch without torch.distributed"
)
def test_a_model_is_freed_whose_monitor_nobody_stopped(tmp_path, capfd):
    """What took the place of functions of torch.distributed stays, and passes calls on."""
    model, optimizer = training("tied")
    monitor = trainmon.watch(model, optimizer, kinds="all", out=str(tmp_path / "run"), every=1)
    train_step(model, optimizer, "tied")
    ends = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer, monitor
    gc.collect()
    assert [end() for end in ends] == [None, None]
    capfd.readouterr()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        one = torch.ones(3)
        torch.distributed.all_reduce(one)
        assert one.tolist() == [1.0, 1.0, 1.0]
    finally:
        torch.distributed.destroy_process_group()
    assert "trainmon" not in capfd.readouterr().err
