# The L2 features of TrainerMon: which modules, in which layout, and their values.
import math

import pytest
import torch
from torch import nn

import compat_case as case


class Core(nn.Module):
    """An attention core, given queries, keys and values of a layout."""

    def forward(self, q, k, v):
        self.given = q.detach().clone(), k.detach().clone()
        return v


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return x @ self.weight.t()


class Gated(nn.Module):
    """Its matrix is called wg."""

    def __init__(self):
        super().__init__()
        self.wg = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return x @ self.wg.t()


class Model(nn.Module):
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(3)
        self.order, self.embed = order, nn.Embedding(11, 8)
        self.qkv, self.core = nn.Linear(8, 24), Core()
        self.norm, self.router, self.gate = nn.LayerNorm(8), Router(), Gated()

    def forward(self, index):
        tokens = torch.arange(3 * 5).remainder(11).add(index).remainder(11).view(3, 5)  # b, s
        q, k, v = self.qkv(self.embed(tokens)).view(3, 5, 3, 2, 4).unbind(2)  # b, s, h, d
        if self.order == "s,b,h,d":
            q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))
        mixed = self.core(q, k, v)
        mixed = self.norm(mixed.reshape(-1, 8))
        return self.router(mixed).square().sum() + self.gate(mixed).sum()


def run(folder, l2_targets, count=1, micro=1, order="s,b,h,d", **config):
    given = {"recording_l2_features": True, "l2_targets": l2_targets, **config}
    model = Model(order)
    found = case.run(folder, given, count, micro, model=model, loss=lambda m, index: m(index))
    return found, model


def expected_attention(q, k, order):
    """Of the first head in the first batch, as the manual's formulas say, keys to come hidden."""
    q, k = (x.transpose(0, 1) if order == "s,b,h,d" else x for x in (q, k))
    q, k = q[0, :, 0].double(), k[0, :, 0].double()
    logits = q @ k.t() / math.sqrt(q.shape[-1])
    logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -math.inf)
    p = torch.softmax(logits, -1)
    entropy = -(p * p.clamp_min(1e-300).log()).sum(-1).mean()
    return entropy.item(), p.amax(-1).mean().item()


@pytest.mark.parametrize("order", ["s,b,h,d", "b,s,h,d", "b, s, h, d", None])
@pytest.mark.parametrize("name", ["core", "0:core"])
def test_attention_hook_and_sa_order(order, name, tmp_path):
    layout = (order or "s,b,h,d").replace(" ", "")
    config = {} if order is None else {"sa_order": order}
    folder, model = run(tmp_path, {"attention_hook": [name]}, order=layout, **config)
    assert case.csvs(folder) == ["attention_hook_0-0.csv"]
    table = case.rows(folder, "attention_hook")
    columns = ["vpp_stage", "name", "step", "micro_step", "entropy", "softmax_max"]
    assert list(table.columns) == columns and case.names(table) == ["core.attention"]
    entropy, largest = expected_attention(*model.core.given, layout)
    assert table["entropy"][0] == pytest.approx(entropy, abs=2e-6)
    assert table["softmax_max"][0] == pytest.approx(largest, abs=2e-6)


def test_attention_of_every_micro_step(tmp_path):
    folder, model = run(tmp_path, {"attention_hook": ["core"]}, count=2, micro=2, ndigits=3)
    table = case.rows(folder, "attention_hook")
    assert list(zip(table["step"], table["micro_step"])) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(table["entropy"])) == 4
    assert list(table["entropy"].round(3)) == list(table["entropy"])
    assert table["entropy"][3] == pytest.approx(
        expected_attention(*model.core.given, "s,b,h,d")[0], abs=6e-4
    )


def expected_linear(weight):
    values = torch.linalg.svdvals(weight.detach().double())
    return (values.square().sum().sqrt() / values[0]).item(), values[0].item()


@pytest.mark.parametrize(
    "targets, found",
    [
        ([], ["qkv", "router", "gate"]),  # all with a matrix; embeddings and norms are none
        (["qkv"], ["qkv"]),
        (["0:gate", "qkv"], ["qkv", "gate"]),
    ],
)
def test_linear_hook(targets, found, tmp_path):
    folder, model = run(tmp_path, {"linear_hook": targets}, micro=2)
    table = case.rows(folder, "linear_hook")
    assert list(table.columns) == ["vpp_stage", "name", "step", "sr", "kernel_norm"]
    assert case.names(table) == [f"{name}.linear" for name in found]
    fresh = Model("s,b,h,d")
    for name, row in zip(found, table.itertuples()):
        module = fresh.get_submodule(name)
        weight = module.wg if name == "gate" else module.weight
        rank, norm = expected_linear(weight)
        assert row.sr == pytest.approx(rank, rel=1e-4)
        assert row.kernel_norm == pytest.approx(norm, rel=1e-4)


def test_router_hooks(tmp_path):
    targets = {"moe_router_weight_hook": ["router"], "moe_router_logit_hook": ["router"]}
    folder, _ = run(tmp_path, targets)
    fresh = Model("s,b,h,d")
    weight = torch.nn.functional.normalize(fresh.router.weight.double(), dim=1)
    pairs = (weight @ weight.t())[tuple(torch.triu_indices(5, 5, 1))]
    table = case.rows(folder, "moe_router_weight_hook")
    assert list(table.columns) == ["vpp_stage", "name", "step", "router_weight_similarity"]
    assert case.names(table) == ["router.moe_router"]
    assert table["router_weight_similarity"][0] == pytest.approx(pairs.mean().item(), abs=2e-6)
    table = case.rows(folder, "moe_router_logit_hook")
    assert case.names(table) == ["router.moe_router"] and "micro_step" in table.columns
    assert 0 < table["per_token_expert_entropy"][0] < math.log(5)


def test_each_router_hook_has_its_own_targets(tmp_path):
    targets = {"moe_router_weight_hook": ["router"], "moe_router_logit_hook": ["gate"]}
    folder, _ = run(tmp_path, targets)
    assert case.names(case.rows(folder, "moe_router_weight_hook")) == ["router.moe_router"]
    assert case.names(case.rows(folder, "moe_router_logit_hook")) == ["gate.moe_router"]


@pytest.mark.parametrize(
    "targets, recording",
    [
        ({"linear_hook": []}, False),
        ({"attention_hook": []}, True),  # attention only where it is named
        ({}, True),
        ({"attention_hook": ["nowhere"]}, True),
    ],
)
def test_what_gives_no_features(targets, recording, tmp_path):
    folder, _ = run(tmp_path, targets, recording_l2_features=recording, param_distribution=True)
    assert case.csvs(folder) == ["param_origin_0-0.csv", "param_updated_0-0.csv"]


def test_features_need_no_targets_of_their_own_modules(tmp_path):
    """l2_targets alone choose: `targets` are of the other rows."""
    config = {"targets": {"gate": {}}, "param_distribution": True}
    folder, _ = run(tmp_path, {"linear_hook": ["qkv"]}, **config)
    assert case.names(case.rows(folder, "linear_hook")) == ["qkv.linear"]
    assert case.names(case.rows(folder, "param_origin")) == ["gate.wg"]


def test_features_are_of_training_mode(tmp_path):
    def loss(model, index):
        model.eval()
        with torch.no_grad():
            model(index)
        model.train()
        return model(index)

    config = {"recording_l2_features": True, "l2_targets": {"attention_hook": ["core"]}}
    folder = case.run(tmp_path, config, model=Model("s,b,h,d"), loss=loss)
    assert len(case.rows(folder, "attention_hook")) == 1
