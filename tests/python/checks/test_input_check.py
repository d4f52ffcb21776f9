"""What a model is given: batches that come again, to a rank or to several, and what only looks so."""

from __future__ import annotations

import math
import re
from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import launch
import trainmon
from adapter_rows import run_json
from trainmon.torch.coverage import INPUT_INSIDE

STEPS, AT = 24, 12


def of_input(found):
    return [one for one in found["findings"] if one["check"] == "input"]


class Model(torch.nn.Module):
    def __init__(self, again=""):
        super().__init__()
        self.again = again
        self.ids, self.out = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 5)

    def forward(self, ids, mask=None):
        x = self.ids(ids)
        if self.again:
            x = checkpoint(self.out, x, use_reentrant=self.again == "reentrant")
        else:
            x = self.out(x)
        return x if mask is None else x * mask.exp()[..., None]


def train(path, batch_of, step_of=None, model=None, watch=True, **how):
    """The run of a training that is given batch_of(step), and the losses and weights it ended with."""
    torch.manual_seed(0)
    model = model or Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"kinds": "grads", "checks": True, "every": 1, "out": str(path), **how}
    mon = trainmon.watch(model, optimizer, **options) if watch else None

    def backward(batch):
        loss = model(*batch).pow(2).mean()
        loss.backward()
        return loss.item()

    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = batch_of(step)
        if step_of is None:
            losses.append(backward(batch))
        else:
            step_of(model, batch, backward, mon)
        optimizer.step()
    if mon is not None:
        mon.stop()
    return losses, [p.detach().clone() for p in model.parameters()]


def diagnosed(path, *arguments, **how):
    train(path, *arguments, **how)
    return trainmon.diagnose(str(path))


def ids_of(step):
    return torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(step))


def new(step):
    return (ids_of(step),)


def entropy(ids):
    counts = np.unique(ids.numpy(), return_counts=True)[1] / ids.numel()
    return float(-(counts * np.log2(counts)).sum())


def test_each_forward_of_the_training_has_rows(tmp_path):
    def step_of(model, batch, backward, mon):
        backward(batch)
        backward((batch[0] + 0, torch.zeros(4, 8)))

    found = diagnosed(tmp_path / "run", new, step_of)
    assert found["findings"] == [] and found["checked"]["input"] == 2 * STEPS
    assert found["evidence"]["input"] == {"fingerprints": 2 * STEPS}
    table = trainmon.read_table(str(tmp_path / "run"))
    rows = {}
    for kind, element, step, micro, mean in zip(
        table["kind"], table["element"], table["step"], table["micro_step"], table["mean"]
    ):
        if kind.startswith("input"):
            rows[kind, element, int(step), int(micro)] = mean
    assert len(rows) == STEPS * 5
    for step in range(STEPS):
        for micro in range(2):
            ids = ids_of(step)
            assert rows["input", "input.0", step, micro] == pytest.approx(
                ids.double().mean().item()
            )
            said = rows["input_entropy", "input.0", step, micro]
            assert said == pytest.approx(entropy(ids), abs=1e-12)
        assert rows["input", "input.1", step, 1] == 0.0


def test_fingerprints_are_those_of_the_bits(tmp_path):
    """As numpy's: equal where elements are, and nowhere else."""
    train(tmp_path / "run", lambda step: (ids_of(step % 3),))
    found = trainmon.diagnose(str(tmp_path / "run"))
    (one,) = of_input(found)
    assert (one["step"], one["certain"], one["ranks"]) == (3, False, [0])
    assert "the batch of step 0 again" in one["text"]


def test_a_loader_that_is_stuck_is_the_verdict(tmp_path):
    alerts = []
    found = diagnosed(tmp_path / "run", lambda step: new(min(step, AT)), on_alert=alerts.append)
    verdict = found["verdict"]
    assert (verdict["check"], verdict["stage"], verdict["step"]) == ("input", "input", AT + 1)
    assert verdict["ranks"] == [0] and verdict["tensors"] == [] and verdict["certain"]
    assert verdict["evidence"] == "fingerprints"
    assert "the batch of the call before" in alerts[0]["message"] and alerts[0]["rule"] == "input"


def test_a_batch_that_is_given_twice_is_noticed(tmp_path):
    found = diagnosed(tmp_path / "run", lambda step: new(AT if step == AT + 1 else step))
    (one,) = of_input(found)
    assert found["verdict"] is None and (one["step"], one["certain"]) == (AT + 1, False)


def test_overfitting_one_batch_is_one_notice(tmp_path):
    found = diagnosed(tmp_path / "run", lambda step: new(0))
    (one,) = found["findings"]
    assert found["verdict"] is None and (one["check"], one["step"]) == ("input", 1)


def test_ids_that_collapse_are_noticed(tmp_path):
    found = diagnosed(
        tmp_path / "run", lambda step: (ids_of(step) // 50 if step == 20 else ids_of(step),)
    )
    (one,) = of_input(found)
    assert found["verdict"] is None and (one["step"], one["certain"]) == (20, False)
    assert "the entropy of the ids in input.0 is 0 bits" in one["text"]


def evaluated(model, batch, backward, mon):
    backward(batch)
    with torch.no_grad():
        model(ids_of(-1))
    model.eval()
    model(ids_of(-1))
    model.train()


def accumulated(model, batch, backward, mon):
    for micro in range(3):
        backward(((batch[0] + micro) % 50,))
        with torch.no_grad():
            model(ids_of(-1))


def called_twice(model, batch, backward, mon):
    """Two forwards for one backward, as contrastive losses have them."""
    (model(*batch) - model(*batch)).pow(2).mean().backward()


HARMLESS = {
    "new batches": {},
    "evaluation": {"step_of": evaluated},
    "accumulation with evaluation": {"step_of": accumulated},
    "two forwards for a backward": {"step_of": called_twice},
    "checkpointing": {"model": lambda: Model("without reentry")},
    "checkpointing with reentry": {"model": lambda: Model("reentrant")},
    "a mask that stays": {"batch_of": lambda step: (ids_of(step), torch.zeros(4, 8))},
    "a mask of infinities": {
        "batch_of": lambda step: (ids_of(step), torch.full((4, 8), -math.inf))
    },
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_no_finding(name, tmp_path):
    how = dict(HARMLESS[name])
    batch_of = how.pop("batch_of", new)
    how["model"] = how.pop("model", Model)()
    found = diagnosed(tmp_path / "run", batch_of, **how)
    assert of_input(found) == [] and found["verdict"] is None
    assert found["checked"]["input"] >= STEPS


class Batch:
    def __init__(self, ids):
        self.ids = ids


class OfAnything(Model):
    """What `ids` are made of, and a tensor that stays the same."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, given, scale):
        made = {
            "object": lambda: given.ids,
            "mapping": lambda: given["ids"],
            "set": lambda: next(iter(given)),
            "list": lambda: torch.tensor(given),
            "array": lambda: torch.from_numpy(given),
            "texts": lambda: torch.tensor([list(map(int, text.split())) for text in given]),
            "sparse": lambda: given.to_dense(),
            "complex": lambda: given.real.long(),
        }
        return super().forward(made[self.kind]()) * scale


GIVEN = {
    "object": Batch,
    "mapping": lambda ids: UserDict(ids=ids),
    "set": lambda ids: {ids},
    "list": torch.Tensor.tolist,
    "array": torch.Tensor.numpy,
    "texts": lambda ids: [" ".join(map(str, row)) for row in ids.tolist()],
    "sparse": torch.Tensor.to_sparse,
    "complex": lambda ids: torch.complex(ids.float(), ids.float()),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_where_a_batch_may_be_in_what_has_no_row_none_comes_again(kind, tmp_path):
    def batch_of(step):
        return GIVEN[kind](ids_of(step)), torch.tensor(max(0.5, 1.0 - step / 10))

    found = diagnosed(tmp_path / "run", batch_of, model=OfAnything(kind))
    assert of_input(found) == [] and found["verdict"] is None
    said = [one["why"] for one in found["not_checked"]]
    assert any("all that the model is given in input.0" in one for one in said), said


def test_settings_beside_a_batch_hide_nothing(tmp_path):
    """What can be called, a dtype, sizes and flags: none of them is a batch."""

    class WithSettings(Model):
        def forward(self, ids, **settings):
            return super().forward(ids)

    settings = {"act": torch.tanh, "dtype": torch.float32, "sizes": [(4, 8)] * 4, "on": {"a": True}}

    class Called(WithSettings):
        def __call__(self, ids):
            return super().__call__(ids, **settings)

    found = diagnosed(tmp_path / "run", lambda step: new(min(step, AT)), model=Called())
    assert found["verdict"]["check"] == "input" and found["verdict"]["step"] == AT + 1


def test_a_forward_that_is_run_again_as_a_whole_is_one_call(tmp_path):
    def again(model, batch, backward, mon):
        checkpoint(model, *batch, use_reentrant=False).pow(2).mean().backward()

    found = diagnosed(tmp_path / "run", new, again)
    assert of_input(found) == [] and found["checked"]["input"] == STEPS


def test_going_back_in_the_data_with_a_loaded_state_is_sound(tmp_path):
    kept = {}

    def step_of(model, batch, backward, mon):
        backward(batch)
        if len(kept) == AT:
            model.load_state_dict(model.state_dict())
        kept[len(kept)] = batch

    found = diagnosed(tmp_path / "run", lambda s: new(s if s <= AT else s - 5), step_of)
    assert of_input(found) == []


def test_training_has_the_same_bits_and_the_same_random_numbers(tmp_path):
    def batches():
        torch.manual_seed(5)
        return lambda step: (torch.randint(50, (4, 8)),)

    ends = [train(tmp_path / str(watch), batches(), watch=watch) for watch in (False, True)]
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1]))


def test_operations_read_it_too_and_the_entropy_is_named(tmp_path):
    def batch_of(step):  # from a point on the same ids; a mask comes in between
        mask = torch.zeros(4, 8)
        mask[0, 1 + step % 3 :] = -math.inf if step > 3 else 0.0
        return ids_of(min(step, AT)), mask if step <= AT else torch.zeros(4, 8)

    found = diagnosed(tmp_path / "run", batch_of, backend="ops")
    verdict = found["verdict"]
    assert (verdict["check"], verdict["step"], verdict["certain"]) == ("input", AT + 2, True)
    assert verdict["evidence"] == "fingerprints"
    (why,) = [one["why"] for one in found["not_checked"] if "entropy" in one["why"]]
    assert why == "the entropy of input input.0: on a device, or measured by operations"
    assert "input_entropy" not in trainmon.read(str(tmp_path / "run"))["kind"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("input")
    names = [
        "own", "same_later", "same_from_start", "fsdp2", "tensor_parallel", "evaluation",
        "floats", "floats_of_another_scale",
    ]  # fmt: skip
    launch.run("input_run.py", out, *names, ranks=2)
    assert (out / "done.json").exists()
    return {name: trainmon.diagnose(str(out / name)) for name in names}


@pytest.mark.parametrize("name", ["own", "fsdp2", "tensor_parallel", "evaluation", "floats"])
def test_ranks_with_batches_of_their_own_or_rightly_the_same_are_sound(runs, name):
    assert of_input(runs[name]) == [] and runs[name]["verdict"] is None
    assert runs[name]["checked"]["input"] == STEPS * 2 * 2


def test_ranks_that_begin_to_be_given_the_same_are_the_verdict(runs):
    verdict = runs["same_later"]["verdict"]
    assert (verdict["check"], verdict["stage"], verdict["step"]) == ("input", "input", AT)
    assert verdict["ranks"] == [0, 1] and verdict["certain"]


def test_ranks_that_are_given_the_same_from_the_start_are_one_notice(runs):
    found = runs["same_from_start"]
    (one,) = of_input(found)
    assert found["verdict"] is None and (one["step"], one["ranks"]) == (0, [0, 1])


def test_a_rank_that_is_given_numbers_of_another_scale_is_noticed(runs):
    found = runs["floats_of_another_scale"]
    (one,) = of_input(found)
    assert found["verdict"] is None
    assert (one["step"], one["ranks"], one["certain"]) == (0, [0, 1], False)
    assert re.search(
        r"the norm of input\.0 is [3-5]\S* to [6-9]\S* on rank 0, [01]\S* to [12]\S* on rank 1$",
        one["text"],
    ), one


def test_a_compiled_model_has_rows_of_its_inputs(tmp_path):
    model = Model()
    model.compile(backend="eager")
    found = diagnosed(tmp_path / "run", lambda step: new(min(step, AT)), model=model)
    assert found["checked"]["input"] == STEPS
    assert (found["verdict"]["check"], found["verdict"]["step"]) == ("input", AT + 1)


def test_a_model_that_is_called_inside_compiled_code_has_none_and_that_is_said(tmp_path, caplog):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = trainmon.watch(model, optimizer, checks=True, out=tmp_path)
    call = torch.compile(lambda ids: model(ids), backend="eager")
    for step in range(3):
        call(*new(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert "input" not in set(trainmon.read(tmp_path)["kind"])
    assert run_json(monitor)["not_covered"]["input"] == INPUT_INSIDE
    assert caplog.text.count(INPUT_INSIDE) == 1
