# Windows and steps: what belongs to which attempt, whatever the loop around the optimizer looks like.
import contextlib
import copy
import math
import os
import sys

import pytest
import torch
from torch import nn

import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batch():
    return torch.randn(5, 3)


def test_a_plain_loop(tmp_path):
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    kinds = ["grads", "weights", "moments"]
    seen = {}
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(batch()).pow(2).mean().backward()
            for name, p in model.named_parameters():
                seen["grad_reduced", name, step] = p.grad.clone()
                seen["param_origin", name, step] = p.detach().clone()
            optimizer.step()
            for name, p in model.named_parameters():
                seen["param_updated", name, step] = p.detach().clone()
                for key in ("exp_avg", "exp_avg_sq"):
                    seen[key, name, step] = optimizer.state[p][key].clone()
    assert healthy(monitor)["rows_produced"] == len(seen)
    found = {(r["kind"], r["name"], r["step"]): r for r in rows(tmp_path)}
    assert found.keys() == seen.keys()
    for key, tensor in seen.items():
        assert_is(found[key], tensor)
        assert found[key]["attempt"] == 0 and found[key]["micro_step"] == 0


def test_moments_that_are_moved_replaced_and_partly_gone_are_those_of_the_optimizer(tmp_path):
    """Where a step finds the moments is remembered: whatever happens between two steps, it holds."""
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen = {}

    def moved():
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].clone() * 3

    def loaded():
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def turned_round():
        for p in list(model.parameters())[::-1]:
            optimizer.state[p] = optimizer.state.pop(p)

    def without():
        model[2].bias.requires_grad_(False)

    def more():
        model[2].bias.requires_grad_(True)
        for state in optimizer.state.values():
            state["exp_avg_extra"] = torch.ones_like(state["exp_avg"])

    def begun_again():
        optimizer.state.clear()

    changes = [moved, loaded, turned_round, without, more, begun_again]
    with trainmon.watch(model, optimizer, kinds=["moments"], out=tmp_path) as monitor:
        for step in range(2 * len(changes)):
            if step % 2:  # the step between finds things as they were left
                changes[step // 2]()
            optimizer.zero_grad()
            model(batch()).pow(2).mean().backward()
            optimizer.step()
            for name, p in model.named_parameters():
                for key in ("exp_avg", "exp_avg_sq"):
                    if p.grad is not None:
                        seen[key, name, step] = optimizer.state[p][key].clone()
    healthy(monitor)
    found = {(r["kind"], r["name"], r["step"]): r for r in rows(tmp_path)}
    found = {key: r for key, r in found.items() if key[0] in ("exp_avg", "exp_avg_sq")}
    assert found.keys() == seen.keys()
    for key, tensor in seen.items():
        assert_is(found[key], tensor)


def test_what_python_does_at_a_step_does_not_grow_with_the_parameters(tmp_path):
    """Python functions of ours that one optimizer step calls, once series are known."""
    package = os.path.join(
        os.path.dirname(trainmon.__file__), ""
    )  # a checkout may be named so, too

    def calls(count):
        model = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        called = 0

        def count_call(frame, event, _):
            nonlocal called
            called += event == "call" and frame.f_code.co_filename.startswith(package)

        kinds = ["grads", "weights", "moments"]
        with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path / str(count)):
            for step in range(4):
                sum(layer(torch.ones(2, 3)).pow(2).sum() for layer in model).backward()
                if step == 3:
                    sys.setprofile(count_call)
                optimizer.step()
                sys.setprofile(None)
                optimizer.zero_grad()
        return called

    few, many = calls(2), calls(40)
    assert 0 < many <= few + 20  # reading them one by one takes hundreds


@versions.post_accumulate_hooks
def test_accumulation_of_unknown_length(tmp_path):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kinds = ["grad_unreduced", "grad_reduced", "actv", "moments"]
    sums = {}
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    for step, length in enumerate([1, 3, 2]):
        for micro in range(length):
            model(batch()).pow(2).mean().backward()
            sums[step, micro] = model[0].weight.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
    healthy(monitor)
    for (step, micro), gradient in sums.items():
        where = {"step": step, "micro_step": micro}
        assert_is(row(tmp_path, kind="grad_unreduced", name="0.weight", **where), gradient)
        assert len(rows(tmp_path, kind="actv", name="0", **where)) == 2
    last = [(0, 0), (1, 2), (2, 1)]
    assert keys(tmp_path, "step", "micro_step", kind="grad_reduced", name="0.weight") == last
    assert len(rows(tmp_path, kind="momentum_buffer", name="0.weight")) == 3


@pytest.mark.parametrize("first", [0, 7, 1000])
def test_the_first_step_is_the_optimizers_own(first, tmp_path):
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    if first == 7:
        for _ in range(7):
            model(batch()).sum().backward()
            optimizer.step()
    settings = {"start_iteration": 1000} if first == 1000 else {}
    with trainmon.watch(model, optimizer, out=tmp_path, **settings):
        for _ in range(2):
            model(batch()).sum().backward()
            optimizer.step()
    assert keys(tmp_path, "step", name="0.bias") == [(first,), (first + 1,)]


def test_a_checkpoint_loaded_after_watch_sets_the_step(tmp_path):
    old, model = linear(), linear()
    trained, optimizer = (torch.optim.AdamW(m.parameters()) for m in (old, model))
    for _ in range(5):
        old(batch()).sum().backward()
        trained.step()
    monitor = trainmon.watch(model, optimizer, out=tmp_path, start_step=5, every=2)
    optimizer.load_state_dict(trained.state_dict())
    for _ in range(4):
        model(batch()).sum().backward()
        optimizer.step()
    healthy(monitor)
    assert keys(tmp_path, "step", kind="grad_reduced", name="0.bias") == [(5,), (7,)]


def test_every_start_and_stop(tmp_path):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"every": 3, "start_step": 2, "stop_step": 9, "kinds": ["grads", "activations"]}
    with trainmon.watch(model, optimizer, out=tmp_path, **settings):
        for _ in range(12):
            model(batch()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for kind in ("grad_reduced", "actv", "actv_grad"):
        assert {r["step"] for r in rows(tmp_path, kind=kind)} == {2, 5, 8}


# --- GradScaler ----------------------------------------------------------------------------------


def scaled_training(tmp_path, fused, known, order, set_to_none=True):
    """Five attempts; the third has an infinite loss, so that GradScaler skips it."""
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=["grads", "grad_unreduced", "param_updated", "actv"],
        out=tmp_path,
        scaler=scaler if known else None,
    )
    weights, gradients = [], []
    for attempt in range(5):
        if order == "zero first":
            optimizer.zero_grad(set_to_none)
        loss = model(batch()).pow(2).mean()
        if attempt == 2:
            loss = loss * torch.inf
        if order == "zero before backward":
            optimizer.zero_grad(set_to_none)
        scaler.scale(loss).backward()
        gradients.append(model[2].weight.grad.clone())
        scaler.step(optimizer)
        scaler.update()
        weights.append(model[2].weight.detach().clone())
    healthy(monitor)
    return weights, gradients


def assert_flags_and_scales_agree(unreduced, known):
    """Without `scaler` nobody knows of one before the first step: its scale is not known there."""
    for found in unreduced:
        first = found["window"] == 0
        assert bool(found["flags"] & 1) == (known or not first)
        if known or not first:
            assert found["loss_scale"] in (1024.0, 512.0)
        else:
            assert math.isnan(found["loss_scale"])


@versions.cpu_scaler
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("order", ["zero first", "zero before backward"])
def test_a_step_that_gradscaler_skips(order, known, set_to_none, tmp_path):
    weights, gradients = scaled_training(tmp_path, False, known, order, set_to_none)
    attempts = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
    unreduced = rows(tmp_path, kind="grad_unreduced", name="2.weight")
    assert [(r["step"], r["attempt"]) for r in unreduced] == attempts
    for found, gradient in zip(unreduced, gradients):
        assert_is(found, gradient)
    assert_flags_and_scales_agree(unreduced, known)
    # The optimizer was not called in the skipped attempt, and saw true gradients in the others.
    reduced = rows(tmp_path, kind="grad_reduced", name="2.weight")
    assert [(r["step"], r["attempt"]) for r in reduced] == [attempts[i] for i in (0, 1, 3, 4)]
    for found, i in zip(reduced, (0, 1, 3, 4)):
        scale = 1024.0 if i < 2 else 512.0
        assert_is(found, gradients[i] / scale)
        assert not found["flags"] & 1
    updated = rows(tmp_path, kind="param_updated", name="2.weight")
    for found, i in zip(updated, (0, 1, 3, 4)):
        assert_is(found, weights[i])
    # The forward of the second attempt is told apart: the scaler can be asked, whoever gave it.
    assert keys(tmp_path, "step", "attempt", kind="actv", name="0", element="output") == attempts


@versions.cpu_fused
@pytest.mark.parametrize("known", [True, False])
def test_a_fused_optimizer_skips_inside_its_step(known, tmp_path):
    weights, gradients = scaled_training(tmp_path, True, known, "zero first")
    attempts = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
    for kind in ("grad_reduced", "param_updated", "grad_unreduced"):
        assert keys(tmp_path, "step", "attempt", kind=kind, name="2.weight") == attempts
    scales = [1024.0, 1024.0, 1024.0, 512.0, 512.0]
    reduced = rows(tmp_path, kind="grad_reduced", name="2.weight")
    for found, gradient, scale in zip(reduced, gradients, scales, strict=True):
        assert_is(found, gradient / scale)  # what the kernel uses
        assert not found["flags"] & 1
    assert_flags_and_scales_agree(rows(tmp_path, kind="grad_unreduced"), known)
    updated = rows(tmp_path, kind="param_updated", name="2.weight")
    for found, weight in zip(updated, weights):
        assert_is(found, weight)
    assert updated[1]["norm"] == updated[2]["norm"]


class Unlike(torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else object):
    """A scaler with a step() of its own: what it leaves on the optimizer is all that is seen."""

    def step(self, optimizer, *args, **kwargs):
        optimizer.grad_scale, optimizer.found_inf = self._scale, torch.zeros(())
        optimizer.step(*args, **kwargs)
        del optimizer.grad_scale, optimizer.found_inf


@versions.cpu_fused
@pytest.mark.parametrize("backend", ["auto", "ops"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_gradients_of_a_fused_step_are_without_the_scale(kind, backend, tmp_path):
    model = linear()
    optimizer = kind(model.parameters(), lr=0.01, fused=True)
    scaler = Unlike("cpu", init_scale=3000.0)
    seen = []
    watched = {"kinds": ["grads"], "backend": backend}
    with trainmon.watch(model, optimizer, out=tmp_path, **watched) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(batch()).pow(2).mean() * 1e-6).backward()
            scaler.step(optimizer)
            # The kernel divides in place, by its own arithmetic.
            seen.append([p.grad.clone() for p in model.parameters()])
        healthy(monitor)
    for place, (name, _) in enumerate(model.named_parameters()):
        found = rows(tmp_path, kind="grad_reduced", name=name)
        for at, gradients in zip(found, seen, strict=True):
            assert_is(at, gradients[place], tolerance=1e-6)
            assert not at["flags"] & 1
    # Many gradients are below eps that are not, times the scale.
    assert any(0 < row["zeros"] < 1 for row in rows(tmp_path, kind="grad_reduced"))


@versions.cpu_fused
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_gradients_that_were_unscaled_and_clipped_by_hand(known, fused, tmp_path):
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = []
    with trainmon.watch(
        model,
        optimizer,
        kinds=["grads", "grad_unreduced"],
        out=tmp_path,
        scaler=scaler if known else None,
    ) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(batch()).pow(2).mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            seen.append(model[0].weight.grad.clone())
            scaler.step(optimizer)
            scaler.update()
        healthy(monitor)
    for at, gradient in zip(
        rows(tmp_path, kind="grad_reduced", name="0.weight"), seen, strict=True
    ):
        assert_is(at, gradient)
        assert not at["flags"] & 1
    assert_flags_and_scales_agree(rows(tmp_path, kind="grad_unreduced"), known)


@versions.post_accumulate_hooks
def test_gradients_cleared_without_a_step_are_another_attempt(tmp_path):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grad_unreduced"], out=tmp_path):
        for attempt in range(3):
            model(batch()).sum().backward()
            if attempt == 1:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
    found = keys(tmp_path, "step", "attempt", "micro_step", name="0.bias")
    assert found == [(0, 0, 0), (1, 0, 0), (1, 1, 0)]


@versions.post_accumulate_hooks
def test_a_single_gradient_that_the_user_clears_is_no_end_of_the_window(tmp_path):
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grad_unreduced"], out=tmp_path):
        for _ in range(2):
            for _ in range(3):
                model(torch.tensor([1, 2])).sum().backward()
                model[0].weight.grad = None  # the embedding is not to learn
            optimizer.step()
            optimizer.zero_grad()
    found = keys(tmp_path, "step", "attempt", "micro_step", name="2.bias")
    assert found == [(step, 0, micro) for step in range(2) for micro in range(3)]


# --- closures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_keyword", [True, False])
def test_gradients_of_a_closure_are_those_it_computes(by_keyword, tmp_path):
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    seen, weights = [], []

    def closure():
        optimizer.zero_grad()
        weights.append(model[0].weight.detach().clone())
        loss = model(batch()).pow(2).sum()
        loss.backward()
        seen.append(model[0].weight.grad.clone())
        return loss

    with trainmon.watch(model, optimizer, kinds=["grads", "weights"], out=tmp_path) as monitor:
        for _ in range(3):
            loss = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
            assert isinstance(loss, torch.Tensor)
    healthy(monitor)
    for kind, tensors in (("grad_reduced", seen), ("param_origin", weights)):
        found = rows(tmp_path, kind=kind, name="0.weight")
        assert [r["step"] for r in found] == [0, 1, 2]
        for r, tensor in zip(found, tensors):
            assert_is(r, tensor)


@versions.post_accumulate_hooks
def test_lbfgs_evaluates_several_times_in_a_step(tmp_path, caplog):
    model = linear()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn=None)
    data, seen, steps = batch(), [], []

    def closure():
        optimizer.zero_grad()
        loss = model(data).pow(2).sum()
        loss.backward()
        seen.append((len(steps), model[2].weight.grad.clone()))
        return loss

    with trainmon.watch(model, optimizer, kinds=["grad_reduced", "actv"], out=tmp_path) as monitor:
        for _ in range(2):
            optimizer.step(closure)
            steps.append(1)
    healthy(monitor)
    found = rows(tmp_path, kind="grad_reduced", name="2.weight")
    assert len(found) == len(seen) > 4
    for r, (in_step, gradient) in zip(found, seen):
        assert r["step"] == in_step and r["attempt"] == 0
        assert_is(r, gradient)
    micros = [r["micro_step"] for r in found if r["step"] == 0]
    assert micros == list(range(len(micros)))
    assert keys(tmp_path, "step", "micro_step", kind="actv", name="0", element="output") == [
        (r["step"], r["micro_step"]) for r in found
    ]
    assert caplog.text.count("LBFGS runs its closure several times in a step") == 1
    assert run_json(monitor)["notes"]["closures"] == {"0": "micro_step counts runs of the closure"}


def test_a_closure_that_raises_ends_the_attempt(tmp_path):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def bad():
        raise KeyError("the user's own")

    def good():
        optimizer.zero_grad()
        loss = model(batch()).sum()
        loss.backward()
        return loss

    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    with pytest.raises(KeyError, match="the user's own"):
        optimizer.step(bad)
    optimizer.step(good)
    healthy(monitor)
    assert keys(tmp_path, "step", "attempt", name="0.bias") == [(0, 1)]


# --- several optimizers --------------------------------------------------------------------------


def test_a_gan(tmp_path):
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    seen = {}
    monitor = trainmon.watch(
        [generator, critic],
        {"generator": of_generator, "critic": of_critic},
        kinds=["grad_reduced", "actv"],
        out=tmp_path,
    )
    for step in range(3):
        for turn in range(2):  # two steps of the critic for one of the generator
            of_critic.zero_grad()
            loss = critic(torch.randn(4, 3)) - critic(generator(torch.randn(4, 2)).detach())
            loss.mean().backward()
            seen[1, 2 * step + turn] = critic.weight.grad.clone()
            of_critic.step()
        of_generator.zero_grad()
        critic(generator(torch.randn(4, 2))).mean().backward()
        seen[0, step] = generator.weight.grad.clone()
        of_generator.step()
    healthy(monitor)
    assert model is not None
    found = rows(tmp_path, kind="grad_reduced", name="weight")
    assert len(found) == len(seen)
    for r in found:
        assert r["chunk"] == r["optimizer"]
        assert_is(r, seen[r["optimizer"], r["step"]])
    # Activations follow the first optimizer. In each of its windows the critic is called five times
    # (twice per turn, once for the generator); no backward reaches the generator before its own.
    calls = keys(tmp_path, "step", "micro_step", "call", kind="actv", chunk=1, element="output")
    assert calls == [(step, 0, call) for step in range(3) for call in range(5)]


def test_a_clock_that_never_steps_is_said(tmp_path, caplog):
    used, unused = linear(), linear()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (unused, used)]
    with trainmon.watch([unused, used], optimizers, kinds=["grads"], out=tmp_path):
        with torch.no_grad():
            for _ in range(1001):
                used(batch())
    assert "has not stepped for 1000 forwards" in caplog.text


def test_an_optimizer_inside_a_wrapper(tmp_path):
    model = linear()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    class Wrapper(torch.optim.Optimizer):  # as accelerate's: an Optimizer without its attributes
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self, closure=None):
            self.optimizer.step(closure)

    outer = Wrapper(inner)
    with trainmon.watch(model, outer, out=tmp_path):
        model(batch()).sum().backward()
        outer.step()
    assert len(rows(tmp_path, kind="grad_reduced")) == 4


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=versions.compile_here)])
def test_copies_of_the_optimizer_and_schedulers_are_not_disturbed(compiled, tmp_path):
    if (
        compiled
    ):  # torch 2.1 then takes the step hooks out of the class; the scheduler keeps that step
        torch.compile(lambda x: x + 1, backend="eager")(batch())
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for _ in range(2):
            model(batch()).sum().backward()
            optimizer.step()
            scheduler.step()
        twin = copy.deepcopy(optimizer)
        assert twin.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()
    healthy(monitor)
    assert keys(tmp_path, "step", name="0.bias") == [(0,), (1,)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_pre_hook_that_comes_in_the_middle_makes_no_finding(tmp_path, is_kept):
    """Clipping begins, or is put on for some steps alone: moments are made of what it left."""
    torch.manual_seed(0)
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = {}

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        seen[step] = model[0].weight.grad.norm().item()

    with trainmon.watch(model, optimizer, out=tmp_path, checks=True, every=1):
        for step in range(40):
            optimizer.zero_grad()
            model(batch()).pow(2).mean().backward()
            is_put_on = step == 20 if is_kept else step % 10 == 5
            handle = optimizer.register_step_pre_hook(clip) if is_put_on else None
            optimizer.step()
            if handle and not is_kept:
                handle.remove()
    table = trainmon.read(tmp_path, kinds=["grad_reduced"])
    norms = table[table.name == "0.weight"].set_index("step").norm
    assert len(norms) == 40
    assert {step: norms[step] for step in seen} == pytest.approx(seen, rel=1e-6)
    found = trainmon.diagnose(str(tmp_path))
    assert found["verdict"] is None, found["verdict"]


@pytest.mark.parametrize("is_first", [False, True])
def test_post_hooks_of_the_user_run_behind_ours(tmp_path, is_first):
    """They edit weights, clear gradients, raise: the rows are those of the step, whoever came first."""
    torch.manual_seed(0)
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    slow = [weight.detach().clone() for weight in model.parameters()]
    left = []

    def after(optimizer, args, kwargs):
        left.append(model[0].weight.norm().item())
        if len(left) % 5 == 0:  # Lookahead
            weights = [weight.detach() for weight in model.parameters()]
            torch._foreach_lerp_(slow, weights, 0.5)
            torch._foreach_copy_(weights, slow)
        optimizer.zero_grad()
        if len(left) == 24:
            raise OSError("no disk for a checkpoint")

    if is_first:
        optimizer.register_step_post_hook(after)
    kinds = ["grads", "weights", "moments"]
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=kinds, checks=True, every=1):
        if not is_first:
            optimizer.register_step_post_hook(after)
        for _ in range(40):
            model(batch()).pow(2).mean().backward()
            with contextlib.suppress(OSError):
                optimizer.step()
    table = trainmon.read(tmp_path, kinds=["param_updated", "exp_avg"])
    table = table[table.name == "0.weight"]
    norms = table[table.kind == "param_updated"].sort_values("step").norm.tolist()
    assert norms == pytest.approx(left, rel=1e-6) and len(norms) == 40
    assert len(table[table.kind == "exp_avg"]) == 40
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]
    assert {one["check"] for one in answer["findings"]} == {"gap"}


def test_a_pre_hook_that_came_after_watch_runs_before_ours(tmp_path, caplog):
    """What it does to gradients is in grad_reduced, in the first step, too."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        seen.append(model[0].weight.grad.norm().item())

    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    optimizer.register_step_pre_hook(clip)
    for _ in range(3):
        optimizer.zero_grad()
        model(batch()).pow(2).mean().backward()
        optimizer.step()
    healthy(monitor)
    monitor.stop()
    norms = [r["norm"] for r in rows(tmp_path) if r["name"] == "0.weight"]
    assert norms == pytest.approx(seen, rel=1e-6)
    assert "came after watch()" not in caplog.text
    assert list(optimizer._optimizer_step_pre_hooks.values()) == [clip]
