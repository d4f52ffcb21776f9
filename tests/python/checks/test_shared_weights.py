"""Hogwild: several processes step one model in shared memory, without locks. One of them is watched."""

from __future__ import annotations

import torch
import torch.multiprocessing as mp

import trainmon

STEPS = 60


def linear():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model.share_memory()


def step(model, optimizer, generator):
    x = torch.randn(8, 6, generator=generator)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def step_beside(model, begun, ends):
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    generator = torch.Generator().manual_seed(2)
    while not ends.is_set():
        step(model, optimizer, generator)
        begun.set()


def test_what_another_process_writes_is_no_verdict(tmp_path):
    model = linear()
    context = mp.get_context("spawn")
    begun, ends = context.Event(), context.Event()
    other = context.Process(target=step_beside, args=(model, begun, ends))
    other.start()
    try:
        assert begun.wait(120)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        generator = torch.Generator().manual_seed(1)
        with trainmon.watch(model, optimizer, out=str(tmp_path / "run"), checks=True, every=1):
            for _ in range(STEPS):
                step(model, optimizer, generator)
    finally:
        ends.set()
        other.join(30)
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert found["verdict"] is None, found["verdict"]
    why = [one["why"] for one in found["not_checked"]]
    assert "they are in shared memory, which other processes may write" in str(why), why
    # What its own memory holds is checked as ever.
    assert found["checked"]["finite"] > 0 and found["checked"]["zero"] > 0


def test_weights_of_this_process_alone_are_checked(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, out=str(tmp_path / "run"), checks=True, every=1):
        for _ in range(8):
            step(model, optimizer, None)
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert found["checked"]["gap"] == 14 and "shared memory" not in str(found["not_checked"])
