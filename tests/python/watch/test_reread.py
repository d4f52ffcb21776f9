# reread=False: a tensor that one module returns and another is given is read once. Rows are those of a run that
# reads each time, and what has changed in between is read again.
import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import models
import trainmon
from adapter_rows import healthy, rows

KINDS = ["activations"]


class Steps(nn.Module):
    """Parts that return what they are given, change it in place, or are given it twice."""

    def __init__(self):
        super().__init__()
        self.first, self.same, self.twice = nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 8)
        self.relu, self.middle = nn.ReLU(inplace=True), nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = self.same(self.first(x))
        x = self.middle(self.relu(x + self.twice(x)))
        x.add_(1.0)  # between two modules
        return self.last(x)


def trained(out, make, batch_of, steps=3, **keys):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if out is not None:
        monitor = trainmon.watch(model, optimizer, out=out, kinds=KINDS, every=1, **keys)
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        models.loss_of(*batch_of(model)).backward() if make is gpt else batch_of(model).backward()
        optimizer.step()
    if monitor is not None:
        healthy(monitor)
    return [parameter.detach().clone() for parameter in model.parameters()]


def gpt():
    return models.Gpt(dropout=0.1)


def of_gpt(model):
    ids = torch.randint(models.VOCABULARY, (models.BATCH, models.LENGTH + 1))
    return model(ids[:, :-1]), ids[:, 1:].contiguous()


def of_steps(model):
    return model(torch.randn(5, 8)).square().mean()


@pytest.mark.parametrize("make, batch_of", [(gpt, of_gpt), (Steps, of_steps)])
def test_rows_and_training_are_as_with_reading_each_time(make, batch_of, tmp_path):
    bare = trained(None, make, batch_of)
    tables = []
    for reread in (True, False):
        out = tmp_path / str(reread)
        after = trained(out, make, batch_of, reread=reread)
        assert all(map(torch.equal, bare, after))
        key = ("kind", "name", "element", "step", "micro_step", "call")
        tables.append({tuple(r[k] for k in key): r for r in rows(out)})
    assert tables[0].keys() == tables[1].keys()
    for key, row in tables[0].items():
        for name in ("count", "norm", "mean", "std", "min", "max", "zeros", "nans", "flags"):
            assert tables[1][key][name] == pytest.approx(row[name], rel=0, abs=0, nan_ok=True), key


class Behind(nn.Module):
    """Writes between two modules: as autograd sees it, or behind its back."""

    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = self.first(x)
        if self.how == "in place":
            with torch.no_grad():
                x.mul_(2.0)
        elif self.how == "other memory":
            x.data = x.data * 2.0
        elif self.how == "behind its back":
            x.data.mul_(2.0)
        return self.last(x)


@pytest.mark.parametrize(
    "how, ratio", [("", 1.0), ("in place", 2.0), ("other memory", 2.0), ("behind its back", 1.0)]
)
def test_what_has_changed_is_read_again(how, ratio, tmp_path):
    """A write behind the back of autograd is what the key assumes not to be: the row is the one before."""
    trained(
        tmp_path, lambda: Behind(how), lambda model: model(torch.randn(3, 4)).sum(), reread=False
    )
    (out,) = rows(tmp_path, kind="actv", name="first", element="output", step=0)
    (given,) = rows(tmp_path, kind="actv", name="last", element="input.0", step=0)
    assert given["norm"] == pytest.approx(ratio * out["norm"], rel=1e-6)


class Seen(torch.Tensor):
    """Sees every function and property of torch."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_subclasses_of_tensors_see_none_of_it(tmp_path):
    counts = []
    for out in (None, tmp_path):
        Seen.calls = 0
        trained(
            out,
            lambda: nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 1)),
            lambda model: model(torch.randn(3, 4).as_subclass(Seen)).sum(),
            reread=False,
        )
        counts.append(Seen.calls)
    assert counts[0] == counts[1] > 0


def test_nothing_is_kept_alive(tmp_path):
    model = Steps()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    model.first.register_forward_hook(lambda _, __, output: seen.append(weakref.ref(output)))
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=KINDS, every=1, reread=False):
        for _ in range(3):
            of_steps(model).backward()
            optimizer.step()
            gc.collect()
            assert all(one() is None for one in seen)
        with torch.inference_mode():  # whose tensors count no versions
            model(torch.randn(5, 8))
        copy.deepcopy(model)
