# The kinds of attention, spectra and routers from a training run to the rows that are read back.
import math

import pytest
import torch
from torch import nn

import models
import trainmon
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from features_model import Gpt, PlainAttention
from test_features_attention import Sizes, dense
from test_features_weights import similarity
from trainmon.torch.features import rows as features

KINDS = ["attention", "spectral", "router"]
ATTENTION = ("attn_entropy", "attn_max", "attn_max_logit")


def training(**options):
    models.seed(0)
    model = Gpt(**options)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps=2, micro_steps=2, autocast=False):
    """Everything that a step leaves behind."""
    left = []
    for _ in range(steps):
        for _ in range(micro_steps):
            ids, target = models.text_batch()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = models.loss_of(model(ids), target)
            loss.backward()
            left.append(loss.detach())
        left += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        left += [p.detach().clone() for p in model.parameters()]
    return [*left, torch.get_rng_state()]


class Seen:
    """What features should come from, noted by hooks of its own."""

    def __init__(self, model):
        self.calls = []  # (name, module, tensors, version of weights)
        for name, module in model.named_modules():
            module.register_forward_hook(self.note(name))

    def note(self, name):
        def hook(module, args, output):
            weight = getattr(module, "weight", None)
            if name.endswith(("core", "router")):
                tensors = [x.detach().clone() for x in args]
                if isinstance(output, tuple):
                    tensors.append(output[0].detach().clone())
                self.calls.append((name, tensors))
            if weight is not None and weight.dim() == 2:
                self.calls.append((f"{name}.weight", [weight.detach().clone()]))

        return hook

    def of(self, name):
        return [tensors for called, tensors in self.calls if called == name]


@pytest.mark.parametrize("backend", ["auto", "ops"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
def test_rows_of_a_run(tmp_path, layout, backend):
    model, optimizer = training(layout=layout)
    seen = Seen(model)
    monitor = trainmon.watch(
        model, optimizer, kinds=KINDS, out=tmp_path, attention_layout=layout, backend=backend
    )
    train(model, optimizer)
    healthy(monitor)
    written = rows(tmp_path)

    def only(**wanted):
        (found,) = (r for r in written if all(r[key] == value for key, value in wanted.items()))
        return found

    order = [layout.index(axis) for axis in "bhsd"]
    places = [(step, micro) for step in range(2) for micro in range(2)]
    for block in range(2):
        name = f"blocks.{block}.mixer.core"
        for (step, micro), (query, key, _) in zip(places, seen.of(name), strict=True):
            expected = dense(query.permute(order), key.permute(order), causal=True)
            for kind, values in zip(ATTENTION, expected):
                for head in range(4):
                    place = {"step": step, "micro_step": micro, "element": f"head.{head}"}
                    found = only(kind=kind, name=name, **place)
                    assert found["call"] == 0
                    assert_is(found, values[:, head], 1e-5)
        name = f"blocks.{block}.experts.router"
        for (step, micro), (_, logits) in zip(places, seen.of(name), strict=True):
            log_chances = logits.double().log_softmax(-1)
            expected = -(log_chances.exp() * log_chances).sum(-1)
            found = only(kind="router_entropy", name=name, step=step, micro_step=micro)
            assert_is(found, expected, 1e-5)
        for step, (weight,) in enumerate(seen.of(f"{name}.weight")[::2]):
            found = only(kind="router_similarity", name=name, step=step)
            assert found["mean"] == pytest.approx(similarity(weight), abs=1e-5)
    weighted = {
        name
        for name, module in model.named_modules()
        if not isinstance(module, (nn.Embedding, nn.LayerNorm)) and hasattr(module, "weight")
    }
    assert {r["name"] for r in written if r["kind"] == "spectral_norm"} == weighted
    for name in weighted:
        for step, (weight,) in enumerate(seen.of(f"{name}.weight")[::2]):
            values = torch.linalg.svdvals(weight.double())
            found = only(kind="spectral_norm", name=name, step=step)  # one per step
            assert found["count"] == 1 and found["micro_step"] == 0 and found["element"] == ""
            assert found["mean"] == pytest.approx(values[0].item(), rel=1e-4)
            found = only(kind="stable_rank", name=name, step=step)
            assert found["mean"] == pytest.approx((values.norm() / values[0]).item(), rel=1e-4)


def test_only_the_kinds_asked_for(tmp_path):
    model, optimizer = training()
    kinds = ["attn_max", "spectral_norm", "router_entropy"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    train(model, optimizer)
    healthy(monitor)
    assert {kind for (kind,) in keys(tmp_path, "kind")} == set(kinds)
    assert run_json(monitor)["not_covered"] == {}


def test_all_of_a_model_without_routers_misses_none(tmp_path):
    for kinds, missed in (
        (["all"], set()),
        (["grads", "router"], {"router_entropy", "router_similarity"}),
    ):
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path / kinds[-1])
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        healthy(monitor)
        told = {one for one in run_json(monitor)["not_covered"] if one.startswith("router")}
        assert told == missed


def test_only_recorded_steps(tmp_path, monkeypatch):
    reads = []
    for name in ("attention_features", "spectral"):
        real = getattr(features, name)
        monkeypatch.setattr(
            features, name, lambda *a, real=real, **k: reads.append(1) or real(*a, **k)
        )
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path, every=2)
    counts = []
    for _ in range(4):
        train(model, optimizer, steps=1)
        counts.append(len(reads))
    healthy(monitor)
    assert {step for (step,) in keys(tmp_path, "step")} == {0, 2}
    assert counts[0] == counts[1] > 0 and counts[2] == counts[3] == 2 * counts[0]


def test_evaluation_gives_no_row(tmp_path):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    model.eval()
    with torch.no_grad():
        model(models.text_batch()[0])
    model.train()
    train(model, optimizer, steps=1, micro_steps=1)
    healthy(monitor)
    assert len(rows(tmp_path, kind="attn_max")) == 8
    assert {micro for (micro,) in keys(tmp_path, "micro_step")} == {0}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_gives_no_row(tmp_path, reentrant):
    model, optimizer = training()
    model.checkpointing = reentrant
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train(model, optimizer, steps=1)
    healthy(monitor)
    found = keys(tmp_path, "name", "element", "micro_step", "call", kind="attn_entropy")
    assert len(found) == len(set(found)) == 2 * 4 * 2
    assert {call for *_, call in found} == {0}


def test_a_module_called_twice_is_counted(tmp_path):
    model, optimizer = training(depth=1)
    model.blocks.append(model.blocks[0])
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train(model, optimizer, steps=1, micro_steps=1)
    healthy(monitor)
    found = keys(tmp_path, "name", "call", kind="attn_max", element="head.1")
    assert found == [("blocks.0.mixer.core", 0), ("blocks.0.mixer.core", 1)]
    assert len(rows(tmp_path, kind="spectral_norm", name="blocks.0.mixer.q")) == 1


def test_modules_by_name(tmp_path):
    model, optimizer = training()
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=KINDS,
        out=tmp_path,
        attention_modules=["blocks.1.mixer.core", "head"],
        spectral_modules=["blocks.0.mixer", "blocks.0.norm1"],
        router_modules=["blocks.1.experts.router", "blocks.0.dropout"],
    )
    train(model, optimizer)
    healthy(monitor)
    named = {kind: {r["name"] for r in rows(tmp_path, kind=kind)} for kind in features.KINDS}
    assert named["attn_entropy"] == {"blocks.1.mixer.core"}
    assert named["stable_rank"] == {f"blocks.0.mixer.{part}" for part in ("q", "kv", "out")}
    assert named["router_similarity"] == {"blocks.1.experts.router"}
    said = str(run_json(monitor)["not_covered"])
    for what in ("attention head", "spectral blocks.0.norm1", "router blocks.0.dropout"):
        assert what in said


def test_include_and_exclude_hold_for_features_too(tmp_path):
    model, optimizer = training()
    limits = {"include": ["blocks.1"], "exclude": ["blocks.1.mixer.q"]}
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path, **limits)
    train(model, optimizer)
    healthy(monitor)
    found = {name for (name,) in keys(tmp_path, "name")}
    assert "blocks.1.mixer.core" in found and "blocks.1.mixer.kv" in found
    assert all(name.startswith("blocks.1.") for name in found) and "blocks.1.mixer.q" not in found


def test_a_kind_that_nothing_gives_is_said(tmp_path):
    model = nn.Sequential(nn.LayerNorm(3), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=[*KINDS, "grads"], out=tmp_path)
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    healthy(monitor)
    said = str(run_json(monitor)["not_covered"])
    assert all(kind in said for kind in features.KINDS)


# --- invisible and harmless ----------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("checkpointing", [None, True, False])
def test_training_is_the_same_to_the_last_bit(tmp_path, autocast, checkpointing):
    def run(watch):
        model, optimizer = training()
        model.checkpointing = checkpointing
        monitor = watch(model, optimizer)
        left = train(model, optimizer, autocast=autocast)
        if monitor is not None:
            healthy(monitor)
        return left

    bare = run(lambda *_: None)
    watched = run(lambda m, o: trainmon.watch(m, o, kinds=KINDS, out=tmp_path))
    assert len(rows(tmp_path)) > 100
    for one, two in zip(bare, watched, strict=True):
        assert torch.equal(one, two)


def test_modes_of_the_user_see_nothing_of_ours(tmp_path):
    models.text_batch()  # read once

    def operations(watched):
        model, optimizer = training(dropout=0.0)
        model.attention = PlainAttention()
        if watched:
            monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
        with Sizes() as sizes:
            query = torch.ones(1, 1, 5, 4)
            model.attention(
                query, query, attention_mask=torch.ones(1, 1, 5, 5, dtype=torch.bool).triu(1)
            )
            train(model, optimizer, steps=1)
        if watched:
            healthy(monitor)
            assert len(rows(tmp_path, name="attention")) == 3
        return sizes.seen

    assert operations(False) == operations(True)


def test_a_weight_that_is_computed_is_left_alone(tmp_path):
    """Reading a parametrized weight may change it: spectral_norm moves on at each access."""

    def run(watched):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
        model = nn.Sequential(layer, nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watched:
            monitor = trainmon.watch(model, optimizer, kinds=["spectral"], out=tmp_path)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        if watched:
            healthy(monitor)
        return [value.clone() for value in model.state_dict().values()]

    for one, two in zip(run(False), run(True), strict=True):
        assert torch.equal(one, two)
    assert {name for (name,) in keys(tmp_path, "name")} == {"1"}


@pytest.mark.parametrize("broken", ["attention_features", "spectral", "per_token_expert_entropy"])
def test_an_error_of_ours_switches_features_off_and_nothing_else(tmp_path, monkeypatch, broken):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("planted")

    bare = train(*training())
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=[*KINDS, "grads"], out=tmp_path)
    monkeypatch.setattr(features, broken, fail)
    for one, two in zip(bare, train(model, optimizer), strict=True):
        assert torch.equal(one, two)
    health = monitor.stop()
    assert list(health["parts_off"]) == ["features"]
    assert {step for (step,) in keys(tmp_path, "step", kind="grad_reduced")} == {0, 1}


def test_a_nan_is_found_in_the_head_it_is_in(tmp_path):
    model, optimizer = training()
    with torch.no_grad():
        model.blocks[1].mixer.q.weight[5, 0] = math.nan  # depth 4: the second head
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train(model, optimizer, steps=1, micro_steps=1)
    healthy(monitor)
    lost = {(r["name"], r["element"]) for r in rows(tmp_path, kind="attn_entropy") if r["nans"]}
    assert lost == {("blocks.1.mixer.core", "head.1")}
    assert math.isnan(row(tmp_path, kind="spectral_norm", name="blocks.1.mixer.q")["mean"])


def test_nothing_is_left_behind(tmp_path):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train(model, optimizer, steps=1)
    monitor.stop()
    assert all(not m._forward_hooks and not m._forward_hooks_with_kwargs for m in model.modules())


def test_a_vmap_over_the_model_in_between_switches_nothing_off(tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, kinds=["grads", "spectral"], out=tmp_path) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 8)).square().mean().backward()
            optimizer.step()
            if step == 0:
                several = {n: torch.stack([p.detach()] * 2) for n, p in model.named_parameters()}
                torch.func.vmap(lambda p, x: torch.func.functional_call(model, p, x), (0, None))(
                    several, torch.ones(2, 8)
                )
        healthy(monitor)
    steps = {r["step"] for r in rows(tmp_path) if r["kind"] == "spectral_norm"}
    assert steps == {0, 1, 2}
