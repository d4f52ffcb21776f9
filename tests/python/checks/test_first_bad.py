# What went wrong first: one answer, live and afterwards, over all starts of a run, and where it came from.
import json
import math

import pytest
import torch
from torch import nn

import trainmon
from broken_model import BAD, GOOD, Blocks, call, live_line, train
from trainmon import _core
from trainmon.torch.measuring import ops
from written_run import WrittenRank

# --- where it came from --------------------------------------------------------------------------


def test_a_nan_of_the_forward_is_not_blamed_on_the_first_parameter(tmp_path, capfd):
    train(tmp_path / "run", broken=(1,))
    live = live_line(capfd.readouterr().err)
    code, out, _ = call("first-bad", tmp_path / "run")
    assert code == 1
    assert out.splitlines()[0] == "first bad: step 1, rank 0, the forward or the loss"
    for text in (live, out):
        assert "12 of 12 gradients of its backward are not finite" in text
        assert "the logged loss is nan" in text
        assert "activations are not recorded" in text and "activations" in text
    found = trainmon.first_bad(tmp_path / "run")
    assert found.came_from == "the forward or the loss" and "12 of 12" in found.why
    as_json = json.loads(call("first-bad", tmp_path / "run", "--json")[1])
    assert (as_json["came_from"], as_json["why"]) == (found.came_from, found.why)


def test_without_a_logged_loss_the_gradients_tell(tmp_path, capfd):
    train(tmp_path / "run", broken=(1,), log=False)
    live = live_line(capfd.readouterr().err)
    _, out, _ = call("first-bad", tmp_path / "run")
    for text in (live, out):
        assert "the forward, the loss or clipping" in text and "12 of 12 gradients" in text
        assert "logged loss" not in text


def test_what_may_have_begun_in_a_step_that_was_not_recorded_is_said(tmp_path):
    train(tmp_path / "run", broken=(2, 3, 4), steps=5, every=3, log=False)
    code, out, _ = call("first-bad", tmp_path / "run")
    assert code == 1 and out.splitlines()[0].startswith("first bad: step 3, rank 0")
    said = "step 2 was not recorded: what went wrong may have begun before step 3"
    assert said in out
    assert json.loads(call("first-bad", tmp_path / "run", "--json")[1])["follows_gap"]
    assert trainmon.first_bad(tmp_path / "run").follows_gap
    verdict = trainmon.diagnose(tmp_path / "run")["verdict"]
    assert verdict["step"] == 3 and said in verdict["text"]
    train(tmp_path / "all", broken=(2, 3, 4), steps=5)
    assert not trainmon.first_bad(tmp_path / "all").follows_gap
    assert "not recorded: what" not in call("first-bad", tmp_path / "all")[1]
    train(tmp_path / "begins", broken=(0,), steps=2)
    assert not trainmon.first_bad(tmp_path / "begins").follows_gap


def scaled(out, bad_from, **keys):
    """A loss scaler that skips every try from a step on: the forward is NaN for good."""
    model = Blocks(broken=range(bad_from, 99))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = trainmon.watch(model, optimizer, out=out, scaler=scaler, every=1, **keys)
    for _ in range(8):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    monitor.stop()


def test_a_training_that_skips_every_step_is_not_in_silence(tmp_path):
    scaled(tmp_path / "run", 3)
    said = "rank 0: the last 5 of 8 tries of a step were skipped, from step 3 on"
    for command in ("first-bad", "diagnose", "doctor"):
        assert said in call(command, tmp_path / "run")[1], command
    assert json.loads(call("doctor", tmp_path / "run", "--json")[1])["skipped"] == [said]
    scaled(tmp_path / "never", 0, checks=True)
    reasons = call("diagnose", tmp_path / "never")[1]
    assert "not recorded: param_origin" in reasons and "checks=True" not in reasons
    scaled(tmp_path / "two", 6)  # two in a row are a scaler's way of working
    assert "tries of a step" not in call("first-bad", tmp_path / "two")[1]
    # Of a forward no loss scaler makes a NaN.
    scaled(tmp_path / "forward", 3, kinds=["grads", "activations"])
    verdict = trainmon.diagnose(tmp_path / "forward")["verdict"]
    assert (verdict["step"], verdict["check"], verdict["restart"]) == (3, "finite", 0)


def test_recorded_activations_name_the_module(tmp_path, capfd):
    train(tmp_path / "run", broken=(1,), kinds=["grads", "activations"])
    live = live_line(capfd.readouterr().err)
    _, out, _ = call("first-bad", tmp_path / "run")
    assert out.splitlines()[0] == "first bad: step 1, rank 0, broken output"
    assert "actv broken output" in live


def masked(out, poison_at=None, causal_from=0, **keys):
    """An encoder of torch's own with a causal mask; a gradient that becomes NaN at a step."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weight = model.layers[1].linear2.weight
    steps = iter(range(99))

    def poison(grad):
        return grad * math.nan if next(steps) == poison_at else grad

    weight.register_hook(poison)
    monitor = trainmon.watch(model, optimizer, out=out, every=1, alert_limit=1e6, **keys)
    for step in range(6):
        causal = nn.Transformer.generate_square_subsequent_mask(8)
        mask = causal if step >= causal_from else torch.zeros(8, 8)
        model(torch.randn(4, 8, 16), mask=mask).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()


@pytest.mark.parametrize("keys", [{"kinds": ["grads", "activations"]}, {"checks": True}])
def test_a_mask_of_attention_is_no_fault(tmp_path, capfd, keys):
    masked(tmp_path / "good", **keys)
    assert "first non-finite" not in capfd.readouterr().err
    code, out, _ = call("diagnose", tmp_path / "good")
    assert code == 0 and out.startswith("nothing certainly wrong")
    assert trainmon.first_bad(tmp_path / "good") is None
    assert trainmon.diagnose(tmp_path / "good")["verdict"] is None
    # Behind it a fault is still found, by all of them.
    masked(tmp_path / "bad", poison_at=3, **keys)
    assert "layers.1.linear2.weight" in live_line(capfd.readouterr().err)
    found = trainmon.first_bad(tmp_path / "bad")
    assert (found.step, found.kind, found.name) == (3, "grad_reduced", "layers.1.linear2.weight")
    verdict = trainmon.diagnose(tmp_path / "bad")["verdict"]
    assert (verdict["step"], verdict["tensors"]) == (3, ["layers.1.linear2.weight"])
    lines = call("anomalies", tmp_path / "bad")[1].splitlines()
    assert not [line for line in lines if "mask" in line]
    top = call("top", tmp_path / "bad")[1]
    assert "mask" not in top and "linear2.weight" in top


def test_a_mask_that_only_some_batches_have_is_none(tmp_path):
    masked(tmp_path, causal_from=2, kinds=["grads", "activations"])
    assert trainmon.first_bad(tmp_path) is None
    assert trainmon.diagnose(tmp_path)["verdict"] is None


class Padded(nn.Module):
    """One head of attention. Scores of padding are filled with -Inf."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.scores, self.weights = nn.Identity(), nn.Softmax(-1)

    def forward(self, x, padding):
        scores = self.query(x) @ self.key(x).mT
        scores = self.scores(scores.masked_fill(padding[:, None, :], -math.inf))
        return self.weights(scores) @ self.value(x)


def padded(out, whole_from=99, poison_at=99, kinds=("grads", "activations"), first=2):
    """Batches have padding from step `first` on; from `whole_from` on a sequence is nothing else."""
    model = Padded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=list(kinds), out=out, every=1) as monitor:
        for step in range(6):
            padding = torch.zeros(3, 5, dtype=torch.bool)
            padding[1, 3 if step < whole_from else 0 :] = step >= first
            x = torch.randn(3, 5, 8)
            loss = model(x, padding).square().mean() * (math.nan if step == poison_at else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)


def test_scores_that_are_filled_where_a_batch_has_padding_are_no_fault(tmp_path, capfd):
    padded(tmp_path)
    assert "not finite" not in (err := capfd.readouterr().err) and "non-finite" not in err
    assert trainmon.first_bad(tmp_path) is None
    assert trainmon.diagnose(tmp_path)["verdict"] is None
    assert trainmon.query(str(tmp_path), "SELECT count(*) FROM alerts").rows == [(0,)]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_scores_of_padding_alone_are_where_it_began(tmp_path, capfd, first):
    """If there was no padding before; else its softmax is the first."""
    padded(tmp_path, whole_from=2, first=first)
    name = ("scores", "input.0") if first == 2 else ("weights", "output")
    assert " ".join(("actv", *name)) in live_line(capfd.readouterr().err)
    found = trainmon.first_bad(tmp_path)
    assert (found.step, found.ranks, found.kind) == (2, (0,), "actv")
    assert (found.name, found.element) == name
    verdict = trainmon.diagnose(tmp_path)["verdict"]
    assert (verdict["step"], verdict["stage"], verdict["tensors"]) == (2, "forward", [name[0]])


def test_padding_does_not_take_the_blame_of_a_later_step(tmp_path):
    padded(tmp_path, poison_at=4)
    found = trainmon.first_bad(tmp_path)
    assert (found.step, found.kind) == (4, "actv_grad")


def test_a_nan_in_what_the_model_is_given_comes_from_the_data(tmp_path, capfd):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, checks=True, every=1, out=str(tmp_path))
    for step in range(4):
        batch = torch.full((3, 4), float(step))
        if step == 2:
            batch[1, 2] = math.nan
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
    monitor.stop()
    bad = trainmon.first_bad(str(tmp_path))
    assert (bad.kind, bad.step, bad.came_from) == ("input", 2, "the data")
    assert "value: the data (the model was given it in its batch" in live_line(
        capfd.readouterr().err
    )
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["stage"], verdict["step"]) == ("finite", "input", 2)
    assert "came from the data" in verdict["text"]


def test_a_model_may_be_given_nan_for_what_is_missing(tmp_path, capfd):
    class Filled(nn.Linear):
        def forward(self, x):
            return super().forward(torch.nan_to_num(x))

    for name, poison_at in (("sound", 9), ("bad", 4)):
        model = Filled(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, checks=True, every=1, out=tmp_path / name):
            for step in range(6):
                batch = torch.randn(3, 4)
                batch[step % 3, 2] = math.nan
                loss = model(batch).pow(2).mean() * (math.nan if step == poison_at else 1.0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    assert "first non-finite" not in capfd.readouterr().err.split("bad")[0]
    assert trainmon.first_bad(tmp_path / "sound") is None
    answer = trainmon.diagnose(tmp_path / "sound")
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["step"], one["stage"], one["certain"]) == (0, "input", False)
    verdict = trainmon.diagnose(tmp_path / "bad")["verdict"]
    assert (verdict["check"], verdict["step"]) == ("finite", 4)
    assert verdict["stage"] != "input"


class Imputer(nn.Module):
    def forward(self, x):
        return torch.where(x.isnan(), torch.zeros(()), x)


class Scaler(nn.Module):
    def forward(self, x):
        return (x - 1.0) / 2.0


def test_a_module_may_pass_on_what_is_missing(tmp_path):
    """One behind it fills it in: all gradients are finite, so it is not certain that it is a fault."""
    model = nn.Sequential(Scaler(), Imputer(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"checks": True, "kinds": ["grads", "activations"], "every": 1}
    with trainmon.watch(model, optimizer, out=tmp_path, **how):
        for step in range(6):
            batch = torch.randn(3, 4)
            batch[1, 2] = math.nan if step >= 3 else 0.0
            model(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    answer = trainmon.diagnose(tmp_path)
    assert answer["verdict"] is None
    assert {(one["step"], one["stage"]) for one in answer["findings"]} == {(3, "input")}
    found = trainmon.first_bad(tmp_path)
    assert (found.step, found.came_from) == (3, "the data")


@pytest.mark.parametrize("begins", [0, 3])
@pytest.mark.parametrize("poison_at", [99, 5])
def test_a_module_may_fill_in_what_is_missing(tmp_path, begins, poison_at):
    """What modules are given has the NaN, too, and what comes out of them has none."""
    model = nn.Sequential(Imputer(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"checks": True, "kinds": ["grads", "activations"], "every": 1}
    with trainmon.watch(model, optimizer, out=tmp_path, **how):
        for step in range(8):
            batch = torch.randn(3, 4)
            if step >= begins:
                batch[step % 3, 2] = math.nan
            if step == poison_at:
                with torch.no_grad():
                    model[1].weight[0, 0] = math.nan
            model(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = trainmon.first_bad(tmp_path)
    answer = trainmon.diagnose(tmp_path)
    if poison_at == 99:
        assert found is None and answer["verdict"] is None
        (one,) = answer["findings"]
        assert (one["step"], one["stage"], one["certain"]) == (begins, "input", False)
    else:
        assert found.step == answer["verdict"]["step"] == 5 and found.name == "1.weight"


class OfRowsWithoutKeys(nn.Module):
    """Attention that may have no key for a row: the NaN of its softmax is filled in, as torch advises."""

    def __init__(self):
        super().__init__()
        self.first, self.shares, self.last = nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 4)

    def forward(self, x, padding):
        z = self.first(x)
        scores = (z @ z.transpose(1, 2)).masked_fill(padding[:, None, :], -math.inf)
        return self.last(self.shares(scores).nan_to_num(0.0) @ z)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_activation_that_is_filled_in_is_not_certain(tmp_path, is_lost):
    """Where a weight has lost an element, its gradients say so."""
    torch.manual_seed(0)
    model = OfRowsWithoutKeys()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    how = {"checks": True, "kinds": ["grads", "activations"], "every": 1}
    with trainmon.watch(model, optimizer, out=tmp_path, **how):
        for step in range(12):
            padding = (
                torch.arange(5)[None] >= torch.tensor([5, 3, 0 if step >= 6 else 4, 2])[:, None]
            )
            out = model(torch.randn(4, 5, 8), padding)
            loss = out[~padding].square().mean() * (math.nan if is_lost and step == 9 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            if not is_lost or step != 9:
                for weight in model.parameters():
                    weight.grad.nan_to_num_(0.0)
            optimizer.step()
    answer = trainmon.diagnose(tmp_path)
    first = answer["findings"][0]
    assert (first["step"], first["stage"], first["certain"]) == (6, "forward", False)
    assert (answer["verdict"] is not None) == is_lost


class NotAllowed(nn.Module):
    """Infinities that are meant: of a weight, of distances, of what a minimum passes over."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.allowed = nn.Parameter(torch.tensor([0.0, 0.0, -math.inf, 0.0]))
        self.nearest = nn.Softmin(-1)
        self.seen = nn.Identity()

    def forward(self, x):
        away = self.first(x).masked_fill(torch.arange(4) == 1, math.inf)
        return self.last(self.nearest(self.seen(away)) * (self.allowed).softmax(-1))


@pytest.mark.parametrize("poison_at", [99, 4])
def test_infinities_that_are_meant_are_no_fault(tmp_path, poison_at):
    model = NotAllowed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trainmon.watch(
        model, optimizer, kinds=["grads", "activations"], checks=True, every=1, out=tmp_path
    ):
        for step in range(8):
            scale = math.inf if step == poison_at else 1.0
            (model(torch.randn(3, 4)).pow(2).mean() * scale).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = trainmon.first_bad(tmp_path)
    verdict = trainmon.diagnose(tmp_path)["verdict"]
    if poison_at == 99:
        assert found is None and verdict is None
    else:
        assert found.step == verdict["step"] == 4 and found.kind not in ("actv", "param_origin")


def test_a_nan_of_the_backward_is_not_blamed_on_the_forward(tmp_path, capfd):
    train(tmp_path / "run", poison=True, steps=1)  # of h.1, h.0 and wte; h.2, h.3 and head are good
    live = live_line(capfd.readouterr().err)
    code, out, _ = call("first-bad", tmp_path / "run")
    assert code == 1 and out.splitlines()[0] == "first bad: step 0, rank 0, the backward"
    assert "the forward or the loss" not in out and "the forward or the loss" not in live
    # The rows of the step come in the order of parameters, and wte is where the fault went to.
    for text in (live, out):
        assert "6 of 12 gradients of its backward are not finite, the logged loss is 0." in text
        assert "near h.1.bias, the last of them" in text
    found = trainmon.first_bad(tmp_path / "run")
    assert found.came_from == "the backward" and found.name == "wte.weight"


def test_what_one_backward_adds_comes_before_the_reduced_gradients(tmp_path, capfd):
    train(tmp_path / "run", poison=True, steps=1, kinds=["grads", "grad_micro"])
    live = live_line(capfd.readouterr().err)
    _, out, _ = call("first-bad", tmp_path / "run")
    assert "what one backward added, backward" in out and "grad_micro" in live
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.kind, found.name) == ("grad_micro", "h.1.bias")


def test_all_gradients_bad_and_a_good_loss_is_the_backward(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, out=tmp_path / "run")
    # The square root of 0: its value is 0, its gradient infinite, and infinity times 0 is NaN.
    loss = (model(torch.ones(1, 3)) * 0).sum().sqrt()
    loss.backward()
    optimizer.step()
    monitor.log(loss=loss)
    monitor.stop()
    _, out, _ = call("first-bad", tmp_path / "run")
    assert out.splitlines()[0] == "first bad: step 0, rank 0, the backward, or clipping"
    assert "the logged loss is 0" in out and "4 of 4 gradients" in out


def clipped(rank):
    """As clip_grad_norm_ leaves them where one gradient was bad."""
    rank.monitor.add_scalar("loss", 0.5)
    for name in "abc":
        rank.observe(BAD, "grad_reduced", name, 0)
    return "the backward, or clipping"


def of_another_rank(rank):
    rank.monitor.add_scalar("loss", 0.5)
    for kind, array in (("grad_unreduced", GOOD), ("grad_reduced", BAD)):
        for name in "abc":
            rank.observe(array, kind, name, 0)
    return "another rank, or what changes gradients between the backward and the step"


def of_the_loss(rank):
    rank.monitor.add_scalar("loss", 0.5)
    for kind in ("grad_unreduced", "grad_reduced"):
        for name in "abc":
            rank.observe(BAD, kind, name, 0)
    return "the backward of the loss"


def clipped_after_a_good_backward(rank):
    rank.monitor.add_scalar("loss", 0.5)
    for kind, array in (("actv_grad", GOOD), ("grad_reduced", BAD)):
        for name in "abc":
            rank.observe(array, kind, name, 0)
    return "another rank, or what changes gradients between the backward and the step"


def a_gradient_of_its_own(rank):
    """Only one is bad: the gradients of activations do not tell how it was made of them."""
    for kind, array in (("actv_grad", GOOD), ("grad_reduced", GOOD)):
        for name in "abc":
            rank.observe(array, kind, name, 0)
    rank.observe(BAD, "grad_reduced", "d", 0)
    return ""


@pytest.mark.parametrize(
    "case",
    [clipped, clipped_after_a_good_backward, a_gradient_of_its_own, of_another_rank, of_the_loss],
)
def test_what_comes_between_the_backward_and_the_step(tmp_path, capfd, case):
    rank = WrittenRank(tmp_path / "run")
    expected = case(rank)
    rank.end_step()
    rank.stop()
    found = trainmon.first_bad(tmp_path / "run")
    assert found.came_from == expected
    assert (found.why == "all 3 recorded gradients of activations were finite") == (
        case is clipped_after_a_good_backward
    )
    assert expected in live_line(capfd.readouterr().err)


# --- a setting of the optimizer ------------------------------------------------------------------


def test_a_learning_rate_that_is_nan_is_named(tmp_path, capfd):
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, out=tmp_path / "run")
    for step in range(6):
        optimizer.param_groups[0]["lr"] = math.nan if step >= 3 else 0.1
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
    monitor.stop()
    _, out, _ = call("first-bad", tmp_path / "run")
    assert out.splitlines()[0] == "first bad: step 4, rank 0, the settings of the optimizer"
    why = "lr of group 0 is nan from step 3 on"
    assert why in out and why in live_line(capfd.readouterr().err)
    assert trainmon.first_bad(tmp_path / "run").why == why


def with_rates(out, rates, bad_at, **keys):
    model = Blocks()
    optimizer = torch.optim.SGD([{"params": model.parameters()}], lr=rates[0], **keys)
    monitor = trainmon.watch(model, optimizer, out=out)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        poison = math.nan if step == bad_at else 1.0
        model(torch.full((2, 4), poison)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    return trainmon.first_bad(out)


def test_a_learning_rate_that_changed_shortly_before_is_told(tmp_path):
    bad = with_rates(tmp_path / "run", [0.001] * 5 + [0.1] * 15, 14)
    change = "lr of group 0 changed from 0.001 to 0.1 at step 5"
    assert (bad.step, bad.changes) == (14, (change,))
    _, out, _ = call("first-bad", tmp_path / "run")
    assert f"\n  before    {change}\n" in out
    assert json.loads(call("first-bad", tmp_path / "run", "--json")[1])["changes"] == [change]


def test_a_learning_rate_that_changed_long_before_is_not_told(tmp_path):
    assert with_rates(tmp_path / "a", [0.001] * 5 + [0.1] * 15, 16).changes == ()
    assert with_rates(tmp_path / "b", [0.001] * 5 + [0.1] * 15, 3).changes == (), "nor later ones"
    assert with_rates(tmp_path / "c", [0.001] * 5, 3).changes == ()


def test_a_schedule_is_one_sentence(tmp_path):
    bad = with_rates(tmp_path / "run", [0.001 * (step + 1) for step in range(20)], 15)
    assert bad.changes == ("lr of group 0 changed from 0.005 to 0.016 in steps 5 to 15",)


def test_a_learning_rate_that_a_restart_changed_is_told(tmp_path):
    with_rates(tmp_path / "run", [0.001] * 3, None)
    bad = with_rates(tmp_path / "run", [0.1] * 3, 1)
    assert (bad.restart, bad.changes) == (1, ("lr of group 0 changed from 0.001 to 0.1 at step 0",))


# --- one definition ------------------------------------------------------------------------------


def weights_before_gradients(rank):
    """Weights are read after the backward that used them."""
    rank.observe(GOOD, "grad_reduced", "a", 0)
    rank.observe(BAD, "grad_reduced", "b", 0)
    rank.observe(BAD, "param_origin", "b", 0)
    rank.observe(GOOD, "param_origin", "a", 0)
    rank.end_step()
    return "param_origin b"


def in_batches_of_their_own(rank):
    rank.observe(GOOD, "grad_reduced", "a", 0)
    rank.observe(BAD, "grad_reduced", "b", 0)
    rank.monitor.seal("before_step")
    assert rank.monitor.settle(10)
    rank.observe(BAD, "param_origin", "b", 0)
    rank.end_step()
    return "param_origin b"


def values_of_a_device_come_late(rank):
    monitor = rank.monitor
    series = monitor.add_series("actv", "h.0", element="output", dtype="float32")
    monitor.add_late_row(series, "float32", (2,), 0, 0, 0, 0)
    ticket = monitor.seal_late()
    rank.observe(GOOD, "grad_reduced", "a", 0)
    rank.observe(BAD, "grad_reduced", "b", 0)
    rank.end_step()
    rank.observe(GOOD, "grad_reduced", "a", 1)
    rank.monitor.seal("before_step")
    assert not rank.monitor.settle(0.3)  # the gradients pass, the activation does not
    values = ops.measure(torch.from_numpy(BAD), 1e-8)
    monitor.fulfil(ticket, values.reshape(1, -1).numpy())
    return "actv h.0 output"


def skipped_steps_of_a_loss_scaler(rank):
    rank.observe(GOOD, "grad_reduced", "a", 0)
    rank.observe(BAD, "grad_reduced", "b", 0)
    rank.end_step("skipped", 4.0)
    rank.observe(GOOD, "grad_reduced", "a", 1)
    rank.end_step()
    assert rank.monitor.settle(10)
    rank.observe(BAD, "exp_avg", "a", 2)
    rank.end_step()
    return "exp_avg a"


@pytest.mark.parametrize(
    "case",
    [
        weights_before_gradients,
        in_batches_of_their_own,
        values_of_a_device_come_late,
        skipped_steps_of_a_loss_scaler,
    ],
    ids=lambda case: case.__name__,
)
def test_the_live_line_and_first_bad_agree(tmp_path, capfd, case):
    rank = WrittenRank(tmp_path / "run", flush_seconds=0.05)
    expected = case(rank)
    rank.stop()
    live = live_line(capfd.readouterr().err)
    found = trainmon.first_bad(tmp_path / "run")
    name = " ".join(filter(None, (found.kind, found.name, found.element)))
    assert name == expected
    assert expected in live and f"step {found.step}" in live


def test_the_live_line_comes_with_the_next_step(tmp_path, capfd):
    rank = WrittenRank(tmp_path / "run")
    rank.observe(BAD, "grad_reduced", "a", 0)
    rank.end_step()
    rank.observe(GOOD, "grad_reduced", "a", 1)
    rank.end_step()
    assert rank.monitor.settle(10)
    said = capfd.readouterr().err
    rank.stop()
    assert "grad_reduced a: 1 NaN of 2 elements, step 0" in live_line(said)


def other_optimizer(rank, window, bad, name):
    series = rank.monitor.add_series("grad_reduced", name, dtype="float32", optimizer=1)
    assert _core.observe_at(rank.monitor.handle, series, BAD if bad else GOOD, window, 0, 0) == 0
    rank.monitor.begin_attempt(1)
    rank.monitor.end_attempt(1, "taken", 1.0)
    rank.monitor.seal("after_step")


@pytest.mark.parametrize("first", ["D", "G"])
def test_two_optimizers_with_steps_of_their_own(tmp_path, capfd, first):
    """Five steps of D for one of G: what was executed first is first, whatever its number."""
    rank = WrittenRank(tmp_path / "run")
    rank.monitor.add_optimizer(0)
    bad_loop = {"D": 3, "G": 5} if first == "D" else {"D": 5, "G": 3}
    for loop in range(8):
        for i in range(5):
            other_optimizer(rank, 5 * loop + i, loop >= bad_loop["D"], "D.w")
        rank.observe(BAD if loop >= bad_loop["G"] else GOOD, "grad_reduced", "G.w", loop)
        rank.end_step()
    rank.stop()
    found = trainmon.first_bad(tmp_path / "run")
    assert (found.name, found.step) == (("D.w", 15) if first == "D" else ("G.w", 3))
    err = capfd.readouterr().err
    assert f"grad_reduced {first}.w" in live_line(err) and "before that" not in err


# --- several starts ------------------------------------------------------------------------------


def start(out, first, last, bad=None):
    rank = WrittenRank(out)
    rank.monitor.set_start_step(0, first)
    for window in range(last - first + 1):
        rank.observe(BAD if first + window == bad else GOOD, "grad_reduced", "w", window)
        rank.observe(GOOD, "grad_reduced", "v", window)
        rank.end_step()
    rank.stop()


def test_a_nan_that_led_to_a_restart_is_found(tmp_path):
    run = tmp_path / "run"
    start(run, 0, 6, bad=5)
    start(run, 4, 9)  # went through step 5 again, and it was good
    code, out, _ = call("first-bad", run)
    assert code == 1
    assert out.splitlines()[0] == "first bad: step 5, rank 0, w, restart 0"
    assert "restart 1, the newest, has nothing bad" in out
    found = trainmon.first_bad(run)
    assert (found.step, found.restart, found.restarts) == (5, 0, (0,))
    told = "restart 0 found a NaN or an infinity: first at step 5, rank 0, grad_reduced w"
    for command in (["top", run], ["show", run], ["tail", run], ["query", run, "SELECT 1"]):
        code, _, err = call(*command)
        assert code == 0 and told in err, command
    assert told in call("doctor", run)[1]
    assert told in json.loads(call("doctor", run, "--json")[1])["earlier"][0]


def test_every_start_with_findings_is_said(tmp_path):
    run = tmp_path / "run"
    start(run, 0, 6, bad=5)
    start(run, 3, 9, bad=4)
    code, out, _ = call("first-bad", run)
    assert code == 1
    assert out.splitlines()[0] == "first bad: step 4, rank 0, w, restart 1"
    assert "restart 0: first at step 5, rank 0, grad_reduced w" in out
    assert trainmon.first_bad(run).restarts == (0, 1)


def test_one_start_says_nothing_of_starts(tmp_path):
    start(tmp_path / "run", 0, 6, bad=5)
    _, out, _ = call("first-bad", tmp_path / "run")
    assert out.splitlines()[0] == "first bad: step 5, rank 0, w"
    assert call("top", tmp_path / "run")[2].count("restart") == 0
