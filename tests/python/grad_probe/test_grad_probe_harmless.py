# GradProbe leaves training alone, whatever happens to its files; what it loses is counted.
import copy
import gc
import json
import pickle
import weakref

import pytest
import torch
from torch.optim import optimizer as hooks

import launch
import trainmon
from grad_probe_case import net, steps, summary, train

# --- training is left alone ----------------------------------------------------------------------


def test_training_is_bit_identical_and_nothing_stays(tmp_path):
    def run(probed):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        state = torch.get_rng_state()
        probe = None
        if probed:
            probe = trainmon.GradProbe(model, out=tmp_path, level="L2", digest="md5", signs="npy")
        train(model, optimizer, 5)
        dead = weakref.ref(model[0].weight.grad)
        optimizer.zero_grad()
        assert dead() is None  # no gradient is kept
        torch.equal(state, torch.get_rng_state())
        if probe is not None:
            probe.stop()
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    (bare, state), (probed, probed_state) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(bare, probed, strict=True))
    assert torch.equal(state, probed_state)
    assert not hooks._global_optimizer_pre_hooks and not hooks._global_optimizer_post_hooks


def test_copies_and_pickles_of_what_keeps_a_probe(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.probe = trainmon.GradProbe(model, optimizer, out=tmp_path)
    again = copy.deepcopy(model)
    assert again.probe is None and pickle.loads(pickle.dumps(model)).probe is None
    copied = copy.deepcopy(optimizer)
    copied.step()
    train(model, optimizer, 2)
    model.probe.stop()
    assert steps(model.probe.directory) == [0, 1]


def test_a_probe_does_not_keep_the_model(tmp_path):
    model = net()
    probe = trainmon.GradProbe(model, out=tmp_path)
    dead = weakref.ref(model)
    del model
    gc.collect()
    assert dead() is None
    other = net()
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    probe.stop()
    assert steps(probe.directory) == []


def test_stop_can_be_called_again_and_ends_it(tmp_path, caplog):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = trainmon.GradProbe(model, out=tmp_path)
    train(model, optimizer, 1)
    first = probe.stop()
    train(model, optimizer, 1)
    assert probe.stop() == first and steps(probe.directory) == [0]
    trainmon.GradProbe(model, out=tmp_path / "idle").stop()
    assert "nothing was written" in caplog.text


def test_an_error_inside_switches_it_off_and_training_goes_on(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
        probe._last = None
        train(model, optimizer, 2)
        assert "grad probe" in probe.health()["parts_off"]
    assert steps(probe.directory) == [0]


# --- disks that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["too_large", "folder_replaced", "no_descriptors"])
def test_training_goes_on_and_the_loss_is_counted(fault, tmp_path):
    (ended,) = launch.run("grad_probe_run.py", fault, tmp_path, timeout=120)
    report = json.loads(ended.out.splitlines()[-1])
    assert report["losses"] == report["bare"]
    (sink,) = report["health"]["sinks"]
    dropped = sum(sink["rows_dropped"].values())
    assert dropped > 0 and report["health"]["rows_pending"] == 0
    assert sink["rows_written"] + dropped == report["health"]["rows_produced"]
    rank = tmp_path / "rank0"
    assert not list(rank.rglob("*.tmp"))
    lines = [line for step in steps(rank) for line in summary(rank, step)]
    # A summary's lines and its sign files are there together, before and after the fault.
    assert len(lines) == sink["rows_written"]
    assert len(list(rank.rglob("*.sign"))) == len(lines)
    assert 0 in steps(rank) and max(steps(rank)) == report["steps"] - 1
    assert ended.err.count("cannot write (") == 1
