# Losses that are logged, and steps that are left out, in the answer to what went wrong first.
import json
import math

import pytest
import torch
from torch import nn

import trainmon
from broken_model import BAD, GOOD, Blocks, call, live_line
from written_run import WrittenRank


def test_a_scaler_that_skips_every_step_hides_no_bad_loss(tmp_path, capfd, caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    monitor = trainmon.watch(model, optimizer, scaler=scaler, out=tmp_path / "run")
    for step in range(30):
        if step == 5:
            with torch.no_grad():
                model[1].weight[0, 0] = math.nan
        loss = model(torch.randn(3, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        monitor.log(loss=loss)
    monitor.stop()
    err = capfd.readouterr().err
    assert "the logged loss was not finite 25 times; next: trainmon diagnose" in err
    assert "the GradScaler left out 20 steps in a row" in caplog.text
    assert "another one took" not in caplog.text
    code, out, said = call("first-bad", tmp_path / "run")
    assert code == 1
    assert out.splitlines()[0] == "first bad: step 5, rank 0, the forward or the loss"
    for text in (live_line(err), out):
        assert "the logged loss is nan" in text and "first row" not in text
    rows = call("query", tmp_path / "run", said.splitlines()[-1].split('"')[1], "--json")[1]
    assert (json.loads(rows)[-1]["step"], json.loads(rows)[-1]["name"]) == (5, "loss")
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.kind, found.name, found.step) == ("logged", "loss", 5)
    # Who asks for rows of a kind gets no other answer.
    assert trainmon.first_bad(tmp_path / "run", kinds="grads") is None


def with_own_scale(out, ends_at=20, nan_from=99, is_kept=False, takes=(), raises=False, **keys):
    """A loop that scales its loss by itself. Gradients pass through float16, where they overflow: it
    leaves such a step out and halves the scale."""
    model = Blocks(broken=range(nan_from, 99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.half().float())
    keys = {"kinds": ["grads", "grad_unreduced", "actv_grad"]} | keys
    left_out = []
    with trainmon.watch(model, optimizer, out=out, every=1, **keys):
        scale = 2.0**16
        for step in range(ends_at):
            optimizer.zero_grad(set_to_none=not is_kept)
            (model(torch.ones(2, 4)).pow(2).mean() * scale).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            if step not in takes and not all(bool(one.isfinite().all()) for one in gradients):
                left_out.append(step)
                scale /= 2
                if raises:
                    raise FloatingPointError
                continue
            for gradient in gradients:
                gradient /= scale
            optimizer.step()
            scale *= 2 if step % 3 == 0 else 1
        optimizer.zero_grad(set_to_none=not is_kept)
    return left_out


@pytest.mark.parametrize("keys", [{}, {"is_kept": True}], ids=str)
def test_a_step_that_the_loop_leaves_out_for_its_own_loss_scale_is_no_fault(tmp_path, capfd, keys):
    left_out = with_own_scale(tmp_path / "run", **keys)
    assert len(left_out) > 2 and left_out[-1] < 19
    live = live_line(capfd.readouterr().err)
    assert live.endswith(f"step {left_out[0]}, which was skipped")
    answer = trainmon.diagnose(tmp_path / "run")
    assert answer["verdict"] is None
    (one,) = [one for one in answer["findings"] if one["check"] == "finite"]
    assert not one["certain"] and one["step"] == left_out[0]
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.step, found.fate) == (left_out[0], "skipped")


def test_a_run_may_end_with_a_step_that_the_loop_leaves_out(tmp_path):
    last = with_own_scale(tmp_path / "run")[-1]
    with_own_scale(tmp_path / "ends", ends_at=last + 1)
    assert trainmon.diagnose(tmp_path / "ends")["verdict"] is None


def test_a_loop_that_leaves_steps_out_hides_no_nan(tmp_path):
    def verdict(name, **keys):
        with_own_scale(tmp_path / name, **keys)
        found = trainmon.diagnose(tmp_path / name)["verdict"]
        return found and (found["check"], found["step"])

    left_out = with_own_scale(tmp_path / "run")
    assert verdict("taken", takes=left_out[1:2]) == ("finite", left_out[1] - 1)
    # One that comes with each try is no matter of a scale.
    assert verdict("again", nan_from=9) == ("finite", 9 - sum(one < 9 for one in left_out))
    assert verdict("module", nan_from=9, kinds=["grads", "activations"]) is not None
    with pytest.raises(FloatingPointError):  # the training ends with it, and nobody cleared it
        with_own_scale(tmp_path / "crash", raises=True)
    crash = trainmon.diagnose(tmp_path / "crash")["verdict"]
    assert (crash["check"], crash["step"]) == ("finite", left_out[0])


def test_of_steps_that_a_scaler_skipped_to_the_end_the_first_is_first(tmp_path, capfd):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    out = tmp_path / "run"
    with trainmon.watch(model, optimizer, kinds=["grad_unreduced"], scaler=scaler, out=out):
        for step in range(8):
            x = torch.full((1, 2), math.nan if step >= 3 else 1.0)
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    found = trainmon.first_bad(out)
    assert (found.step, found.attempt, found.fate) == (3, 0, "skipped")
    err = capfd.readouterr().err
    assert "which was skipped" in live_line(err) and "outside skipped steps" not in err


def test_a_loss_between_the_recorded_steps_comes_first(tmp_path, capfd):
    rank = WrittenRank(tmp_path / "run")
    for window in range(4):
        rank.monitor.add_scalar("train/Loss", math.inf if window >= 1 else 0.5)
        rank.monitor.add_scalar("other", math.nan)
        if window != 1:
            rank.observe(BAD if window >= 2 else GOOD, "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.kind, found.name, found.step) == ("logged", "train/Loss", 1)
    assert found.why == "the logged loss is inf"
    assert "the logged loss is inf" in live_line(capfd.readouterr().err)


def test_a_scalar_that_is_not_called_a_loss_is_named_and_counts_for_nothing(tmp_path):
    """A validation metric may be NaN until it is measured."""
    for name, bad_row in (("alone", False), ("beside", True)):
        rank = WrittenRank(tmp_path / name)
        for window in range(3):
            rank.monitor.add_scalar("ppl", math.nan if window == 1 else 2.0)
            rank.observe(BAD if bad_row and window == 2 else GOOD, "grad_reduced", "w", window)
            rank.end_step()
        rank.stop()
    code, out, _ = call("first-bad", tmp_path / "alone")
    named = 'ppl is nan at step 1 on rank 0; it counts where its name has "loss" in it'
    assert code == 0 and out.splitlines()[1] == f"but the logged scalar {named}"
    assert trainmon.first_bad(tmp_path / "alone") is None
    assert "ppl" not in call("first-bad", tmp_path / "alone", "--kind", "grads")[1]
    code, out, _ = call("first-bad", tmp_path / "beside")
    assert code == 1 and out.startswith("first bad: step 2, rank 0, w")
    assert f"\n  scalar    the logged {named}\n" in out


@pytest.mark.parametrize("returns, is_verdict", [(1, True), (2, False)])
def test_a_loss_that_is_not_there_in_most_steps(tmp_path, returns, is_verdict):
    """As of a validation in each tenth step, where gradients are recorded in these alone."""
    rank = WrittenRank(tmp_path / "run")
    for window in range(10 * returns + 7):
        has_validation = window % 10 == 0 and window > 0
        rank.monitor.add_scalar("val_loss", 0.5 if has_validation else math.nan)
        if has_validation:
            rank.observe(GOOD, "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    answer = trainmon.diagnose(tmp_path / "run")
    assert (answer["verdict"] is not None) == is_verdict
    assert [one["stage"] for one in answer["findings"]] == ["forward" if is_verdict else "loss"]


@pytest.mark.parametrize("begins, ends", [(0, 3), (0, 6), (3, 4), (3, 6)])
def test_a_loss_whose_gradients_are_finite_is_none_that_the_step_used(
    tmp_path, capfd, begins, ends
):
    """A best loss before there is one; a part of the loss that is not always computed."""
    for name, bad_at in (("sound", 9), ("bad", 5)):
        rank = WrittenRank(tmp_path / name)
        for window in range(6):
            rank.monitor.add_scalar("best_val_loss", math.inf if begins <= window < ends else 0.5)
            rank.observe(BAD if window >= bad_at else GOOD, "grad_reduced", "w", window)
            rank.end_step()
        rank.stop()
        line = [one for one in capfd.readouterr().err.splitlines() if "first non-finite" in one]
        assert len(line) == (name == "bad")
    assert trainmon.first_bad(tmp_path / "sound") is None
    answer = trainmon.diagnose(tmp_path / "sound")
    assert answer["verdict"] is None
    said = [(one["step"], one["stage"], one["certain"]) for one in answer["findings"]]
    assert said == ([(3, "loss", False)] if begins else [])
    verdict = trainmon.diagnose(tmp_path / "bad")["verdict"]
    assert (verdict["check"], verdict["step"]) == ("finite", 5)


def test_the_loss_beside_a_bad_row_is_that_of_its_attempt(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for window, (loss, fate) in enumerate([(0.5, "taken"), (0.25, "skipped"), (0.125, "taken")]):
        for kind in ("grad_unreduced", "grad_reduced"):
            rank.observe(BAD if window == 1 else GOOD, kind, "w", window)
        rank.monitor.add_scalar("loss", loss)
        rank.end_step(fate)
    rank.observe(BAD, "actv", "m", 1)
    rank.stop()
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.kind, found.step, found.attempt) == ("actv", 1, 0)
    assert "0.125" not in found.why, found.why
    code, out, _ = call("first-bad", tmp_path / "run")
    assert code == 1 and "nothing outside of skipped steps is bad" in out


def test_of_one_step_the_row_comes_before_the_loss(tmp_path, capfd):
    rank = WrittenRank(tmp_path / "run")
    for window in range(3):
        rank.monitor.add_scalar("loss", math.nan if window >= 1 else 0.5)
        rank.observe(BAD if window >= 1 else GOOD, "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.kind, found.name, found.step) == ("grad_reduced", "w", 1)
    assert "first row grad_reduced w" in live_line(capfd.readouterr().err)


def test_other_readers_say_a_bad_loss_of_an_older_restart(tmp_path):
    for bad in (True, False):
        rank = WrittenRank(tmp_path / "run")
        rank.monitor.add_scalar("loss", math.nan if bad else 0.5)
        rank.observe(GOOD, "param_origin", "w", 0)
        rank.end_step()
        rank.stop()
    assert "restart 0 found a NaN" in call("top", tmp_path / "run")[2]
    assert trainmon.first_bad(tmp_path / "run").restart == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_never_is_finite_is_noticed(value, tmp_path):
    """Eight times; a best loss is infinite before there is one."""
    for steps in (7, 8):
        rank = WrittenRank(tmp_path / str(steps))
        for step in range(steps):
            rank.observe(GOOD, "grad_reduced", "w", step)
            rank.monitor.add_scalar("loss", value)
            rank.end_step()
        rank.stop()
        findings = trainmon.diagnose(tmp_path / str(steps))["findings"]
        expected = [("finite", 0, False)] if steps == 8 else []
        assert [(one["check"], one["step"], one["certain"]) for one in findings] == expected
