"""estimate(): what it says before training is what the run then records, and it changes nothing."""

import collections
import logging
import pathlib
import random

import numpy as np
import pytest
import torch
from torch import nn

import log_decoder
import models
import trainmon

EVERYTHING = [
    "grads",
    "grad_micro",
    "weights",
    "moments",
    "activations",
    "update",
    "mg_direction",
    "buffer",
]
SCALAR = "mg_direction"  # its row is one number, read from all elements


def optimizer_of(model, kind=torch.optim.AdamW, **options):
    return kind(model.parameters(), lr=1e-3, **options)


def step(model, optimizer, batch, micro_steps=1):
    data, target = batch
    for _ in range(micro_steps):
        models.loss_of(model(data), target).backward()
    optimizer.step()
    optimizer.zero_grad()


def recorded(out, step_number):
    """By kind the series, rows and elements of a window, from the log's bytes."""
    rows = collections.defaultdict(lambda: [set(), 0, 0])
    segments = [
        log_decoder.decode(path.read_bytes()) for path in pathlib.Path(out).rglob("*.tmlog")
    ]
    for segment in segments:
        for row in (row for batch in segment.batches for row in batch["rows"]):
            if row["window"] == step_number:
                series = segment.series[row["series"]]
                found = rows[series["kind"]]
                found[0].add((series["name"], series["element"]))
                found[1] += 1
                found[2] += row["count"]
    return {kind: (len(names), count, elements) for kind, (names, count, elements) in rows.items()}


def check(model, optimizer, batch, out, micro_steps=1, **keys):
    """That the second step of a run has the rows that were told."""
    found = trainmon.estimate(model, optimizer, batch[0], **keys)
    monitor = trainmon.watch(model, optimizer, out=str(out), **keys)
    for _ in range(2):
        step(model, optimizer, batch, micro_steps)
    assert monitor.stop()["parts_off"] == {}
    told = {
        cost.kind: (
            cost.tensors,
            cost.rows,
            cost.tensors if cost.kind == SCALAR else cost.elements,
        )
        for cost in found.kinds
    }
    assert told == recorded(out, 1)
    return found


@pytest.mark.parametrize("name", models.NAMES)
def test_rows_and_elements_are_those_that_the_run_records(name, tmp_path):
    models.seed(3)
    model = models.build(name)
    kinds = EVERYTHING if name != "lstm" else EVERYTHING[:-1]  # as below, with fewer kinds
    found = check(model, optimizer_of(model), models.draw(name), tmp_path / "run", kinds=kinds)
    assert not found.not_estimated
    assert all(cost.milliseconds > 0 and cost.bytes_read > 0 for cost in found.kinds)


@pytest.mark.parametrize(
    "kind, options",
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True, "foreach": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    ],
)
def test_what_an_optimizer_keeps_is_known_before_its_first_step(kind, options, tmp_path):
    models.seed(3)
    model = models.build("cnn")
    check(
        model, optimizer_of(model, kind, **options), models.draw("cnn"), tmp_path, kinds="moments"
    )


def test_selections_frozen_parameters_and_accumulation(tmp_path):
    models.seed(3)
    model = models.build("gpt")
    model.blocks[0].requires_grad_(False)
    keys = {"include": ["blocks"], "exclude": ["**.dropout"], "grad_acc_steps": 3}
    batch = models.draw("gpt")
    for number, kinds in enumerate((EVERYTHING[:-1], ["actv_grad"])):
        out = tmp_path / str(number)
        check(model, optimizer_of(model), batch, out, 3, kinds=kinds, **keys)
        check(
            model, optimizer_of(model), batch, out / "b", 3, kinds=kinds, input_grads=False, **keys
        )


def test_modules_called_twice_and_compiled_ones(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.layer(self.layer(x).relu_()))

    batch = torch.randn(5, 6), torch.randint(0, 3, (5,))
    model = Twice()
    found = check(model, optimizer_of(model), batch, tmp_path, kinds=["activations"])
    by_kind = {cost.kind: (cost.tensors, cost.rows) for cost in found.kinds}
    assert by_kind["actv"] == (6, 8)
    compiled = trainmon.estimate(torch.compile(model), None, batch[0], kinds=["activations"])
    assert {cost.kind: (cost.tensors, cost.rows) for cost in compiled.kinds} == by_kind


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.rest = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.ReLU(), nn.Linear(6, 3))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = self.first(x)
        if self.use_reentrant is None:
            return self.rest(x)
        return torch.utils.checkpoint.checkpoint(self.rest, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("how", [True, False, "autocast", "ddp"])
def test_recomputed_forwards_autocast_and_ddp(how, tmp_path):
    batch = torch.randn(5, 6), torch.randint(0, 3, (5,))
    model = Checkpointed(how if isinstance(how, bool) else None)
    if how == "ddp":
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            kinds = ["grads", "activations"]
            found = check(model, optimizer_of(model), batch, tmp_path, kinds=kinds)
    finally:
        if how == "ddp":
            torch.distributed.destroy_process_group()
    by_kind = {cost.kind: cost for cost in found.kinds}
    assert by_kind.keys() == {"grad_reduced", "actv", "actv_grad"} | (
        {"grad_unreduced"} if how == "ddp" else set()
    )
    if how == "autocast":  # what linear layers give has two bytes, what the model is given four
        assert by_kind["actv"].bytes_read < 4 * by_kind["actv"].elements


class Counts(nn.Module):
    """Has state of every sort that a forward may change."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.utils.spectral_norm(nn.Linear(4, 4))
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.kept = 0, []

    def forward(self, x):
        self.calls += 1
        self.kept.append(x)
        self.seen = self.seen + 1
        x = x + random.random() + float(np.random.rand()) + torch.rand(4)
        return nn.functional.dropout(self.layer(self.norm(x)), training=self.training)


def test_nothing_of_the_model_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Counts()
    heard = []
    handle = model.layer.register_forward_hook(lambda *_: heard.append(1))
    optimizer = optimizer_of(model)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()

    def bits(value):
        return value.detach().numpy().tobytes() if isinstance(value, torch.Tensor) else value

    def state():
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        tensors += [t for kept in optimizer.state.values() for t in kept.values()]
        hooks = [
            len(getattr(m, name)) for m in model.modules() for name in vars(m) if "_hooks" in name
        ]
        versions = [t._version for t in (*model.parameters(), *model.buffers())]
        identities = [id(t) for t in (*model.parameters(), *model.buffers(), model.seen)]
        drawn = bits(torch.get_rng_state()), random.getstate(), str(np.random.get_state())
        others = model.calls, len(model.kept), len(heard), model.training, torch.is_grad_enabled()
        return [*map(bits, tensors)], hooks, versions, identities, drawn, others

    x = torch.randn(3, 4, requires_grad=True)
    before = state()
    found = trainmon.estimate(model, optimizer, x, kinds=["grads", "moments", "activations"])
    assert state() == before and x.grad is None and not list(tmp_path.iterdir())
    assert {cost.kind for cost in found.kinds} >= {"exp_avg", "actv", "actv_grad"}
    handle.remove()
    model.eval()
    before = state()
    assert len(trainmon.estimate(model, None, x.detach(), kinds=["actv"]).kinds) == 1
    assert state() == before


def test_a_watched_model_goes_on_as_it_was(tmp_path):
    models.seed(3)
    model, batch = models.build("gpt"), models.draw("gpt")
    optimizer = optimizer_of(model)
    with trainmon.watch(model, optimizer, out=str(tmp_path), kinds=["activations"]) as monitor:
        step(model, optimizer, batch)
        found = trainmon.estimate(model, optimizer, batch[0], kinds=["activations"])
        step(model, optimizer, batch)
    first, second = recorded(tmp_path, 0), recorded(tmp_path, 1)
    assert (
        first
        == second
        == {cost.kind: (cost.tensors, cost.rows, cost.elements) for cost in found.kinds}
    )
    assert monitor.health()["rows_produced"] == 2 * found.together.rows


def test_the_disk_takes_no_more_than_was_told_and_a_third_at_least(tmp_path):
    models.seed(3)
    model, batch = models.build("gpt"), models.draw("gpt")
    optimizer = optimizer_of(model)
    kinds, steps = ["grads", "weights", "activations"], 40
    found = trainmon.estimate(model, optimizer, batch[0], kinds=kinds, step_seconds=0.5)
    with trainmon.watch(model, optimizer, out=str(tmp_path), kinds=kinds):
        for _ in range(steps):
            step(model, optimizer, batch)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.tmlog"))
    told = steps * sum(cost.disk_bytes_per_step for cost in found.kinds)
    assert told / 3 <= written <= told
    assert found.together.disk_bytes_per_day == pytest.approx(told / steps * 86400 / 0.5)


def test_every_and_ranks_count(monkeypatch):
    model = nn.Linear(4, 2)
    one = trainmon.estimate(model, optimizer_of(model))
    assert (one.every, one.ranks) == (1, 1)
    many = trainmon.estimate(model, optimizer_of(model), every=5, ranks=[0, 1, 2])
    assert (many.every, many.ranks) == (5, 3)
    assert many.together.disk_bytes_per_day == pytest.approx(
        one.together.disk_bytes_per_day * 3 / 5
    )
    milliseconds = many.together.milliseconds / 5 + many.hooks_milliseconds
    assert many.share == pytest.approx(milliseconds / 1000) and many.hooks_milliseconds >= 0
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert trainmon.estimate(model).every == 10
    text = str(many)
    assert "One step in 5 is recorded on 3 ranks." in text and "grad_reduced" in text
    assert "Not estimated" not in text


def test_without_an_optimizer_nothing_is_said_of_moments():
    model = nn.Linear(4, 2)
    found = trainmon.estimate(model, inputs=torch.ones(2, 4), kinds=["grads", "moments"])
    assert [cost.kind for cost in found.kinds] == ["grad_reduced"]
    assert found.not_estimated == ()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_the_mode_of_the_caller_changes_nothing(mode):
    model, batch, kinds = nn.Linear(4, 2), torch.ones(2, 4), ["grads", "activations"]
    expected = trainmon.estimate(model, inputs=batch, kinds=kinds)
    with mode():
        found = trainmon.estimate(model, inputs=batch, kinds=kinds)
    assert [(one.kind, one.rows) for one in found.kinds] == [
        (one.kind, one.rows) for one in expected.kinds
    ]
    assert len(expected.kinds) == 3 and found.not_estimated == ()


def test_the_text_tells_a_recorded_step_from_the_average_one():
    model = nn.Linear(4, 2)
    found = trainmon.estimate(model, inputs=torch.ones(2, 4), every=10, step_seconds=0.5)
    average = found.together.milliseconds / 10 + found.hooks_milliseconds
    text = str(found).splitlines()[-1]
    assert text.startswith("One step in 10 is recorded on 1 rank. On cpu, the rows of such a step")
    assert f" take {found.together.milliseconds:.3g} ms. Hooks on parameters" in text
    assert f"The average is {average:.3g} ms a step, which is {100 * found.share:.2g} %" in text
    text = str(trainmon.estimate(model.to("meta")))
    assert "The average" not in text and "Not estimated: times" in text


def test_a_batch_of_a_wrong_shape_is_one_sentence():
    """And no traceback that torch logs."""
    log, records = logging.getLogger("torch._subclasses.fake_tensor"), []
    handler = logging.Handler()
    handler.emit = records.append
    log.addHandler(handler)
    try:
        found = trainmon.estimate(nn.Linear(4, 2), inputs=torch.ones(2, 5), kinds=["actv"])
    finally:
        log.removeHandler(handler)
    (why,) = found.not_estimated
    assert why.startswith("activations: it does not run without values (")
    assert records == [] and not log.disabled


def test_canaries_are_rows_and_their_time_is_not_estimated():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    found = trainmon.estimate(model, inputs=torch.ones(2, 4), kinds=["actv", "canary"])
    assert found.not_estimated == ("canaries: each takes a forward and a backward",)


def test_what_cannot_be_estimated_is_said():
    class Decides(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else x

    model = Decides()
    found = trainmon.estimate(model, optimizer_of(model), torch.ones(2, 4), kinds=["grads", "actv"])
    assert [cost.kind for cost in found.kinds] == ["grad_reduced"]
    assert "activations: it does not run without values" in found.not_estimated[0]
    found = trainmon.estimate(model, kinds=["actv"])
    assert found.kinds == () and "need `inputs`" in str(found)
    found = trainmon.estimate(
        [nn.Linear(2, 2), nn.Linear(2, 2)], None, torch.ones(2, 2), kinds="actv"
    )
    assert "several models" in str(found)

    class Odd(torch.optim.SGD):
        def __init__(self, params, needed):
            super().__init__(params, lr=0.1)

    found = trainmon.estimate(model, Odd(model.parameters(), 1), kinds=["moments"])
    assert found.kinds == () and "moments of Odd" in str(found)
    found = trainmon.estimate(model, None, torch.ones(2, 4), kinds=["spectral", "cc", "input"])
    assert {cost.kind: cost.milliseconds for cost in found.kinds}["stable_rank"] is None
    assert "cc: shapes do not tell it" in str(found) and " ? " in str(found)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"kinds": "gradients"}, trainmon.ConfigError, "gradients"),
        ({"every": 0}, trainmon.ConfigError, "every"),
        ({"step_seconds": 0}, ValueError, "step_seconds"),
        ({"step_seconds": "x"}, TypeError, "step_seconds"),
        ({"optimizer": 3}, TypeError, "optimizer"),
        ({"model": 3}, TypeError, "model"),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=text):
        trainmon.estimate(**{"model": nn.Linear(2, 2), **arguments})


def test_inputs_by_name_and_a_loss_among_outputs(tmp_path):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = WithLoss()
    inputs = {"x": torch.randn(5, 4), "labels": torch.randint(0, 3, (5,))}
    keys = {"kinds": ["activations", "input"]}
    found = trainmon.estimate(model, optimizer_of(model), collections.UserDict(inputs), **keys)
    optimizer = optimizer_of(model)
    with trainmon.watch(model, optimizer, out=str(tmp_path), **keys):
        model(**inputs)["loss"].backward()
        optimizer.step()
    told = {cost.kind: (cost.tensors, cost.rows, cost.elements) for cost in found.kinds}
    assert told == recorded(tmp_path, 0)


def test_no_copy_of_weights_is_made():
    """A model larger than any memory is estimated all the same."""
    with torch.device("meta"):
        large = nn.Sequential(nn.Linear(2**20, 2**20), nn.ReLU())
    found = trainmon.estimate(large, None, torch.ones(2, 2**20, device="meta"), kinds=["actv"])
    (cost,) = found.kinds
    assert cost.elements == 6 * 2 * 2**20 and cost.milliseconds is None
    assert "device meta" in str(found)
