# With every field of the compatible face on: training is bit-identical, and stop() leaves nothing.
import gc
import random
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import compat_case as case
import marks


class Core(nn.Module):
    def forward(self, q, k, v):
        order = (1, 2, 0, 3)
        q, k, v = (x.permute(order) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).permute(
            2, 0, 1, 3
        )


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(8, 24), "core": Core(), "drop": nn.Dropout(0.2),
                           "norm": nn.LayerNorm(8), "router": nn.Linear(8, 3)})
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(8, 17)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            q, k, v = layer["qkv"](x).view(*x.shape[:2], 3, 2, 4).unbind(2)
            x = x + layer["drop"](layer["core"](q, k, v).flatten(2))
            x = layer["norm"](x) * layer["router"](x).softmax(-1).amax(-1, True)
        return self.head(x)


EVERYTHING = {
    "targets": {}, "xy_distribution": True, "all_xy": True, "wg_distribution": True,
    "monitor_mbs_grad": True, "mv_distribution": True, "param_distribution": True,
    "mg_direction": True, "stack_info": True, "recording_l2_features": True,
    "l2_targets": {"attention_hook": ["layers.0.core", "0:layers.1.core"], "linear_hook": [],
                   "moe_router_weight_hook": ["layers.0.router"],
                   "moe_router_logit_hook": ["layers.0.router"]},
    "cc_distribution": {"enable": True, "cc_pre_hook": True, "cc_codeline": []},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
                        {"rule_name": "AnomalyNan", "args": {"threshold": 0.5}}], "dump": True},
    "ops": ["min", "max", "norm", "zeros", "nans", "mean"], "eps": 1e-8, "ndigits": 12,
    "step_count_per_record": 2, "start_step": 0, "step_interval": 1, "module_ranks": [0],
}  # fmt: skip


def seed():
    random.seed(7), np.random.seed(7), torch.manual_seed(7)


def train(folder=None, config=EVERYTHING, count=4, micro=2, look=None):
    """A trail of every step, and the marks after the end."""
    seed()
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    monitor, trail = None, []
    if folder is not None:
        with case.output(folder):
            monitor = case.trainer_mon(folder, config)
            monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=micro)
    for step in range(count):
        optimizer.zero_grad()
        for _ in range(micro):
            tokens = torch.randint(0, 17, (6, 2))
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) / micro
            loss.backward()
            trail.append(loss.detach().clone())
        dist.all_reduce(total := loss.detach().clone())
        trail += [total, *(p.grad.clone() for p in model.parameters())]
        if look is not None:
            look(monitor, step)
        optimizer.step()
        trail += [p.detach().clone() for p in model.parameters()]
        trail += [v.clone() for p in model.parameters() for v in optimizer.state[p].values()]
        trail += [torch.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(np.int64)),
                  torch.tensor(random.getstate()[1])]  # fmt: skip
    if monitor is not None:
        monitor.stop()
    left = marks.of_objects(model, [optimizer])
    return trail, left, weakref.ref(model), monitor


def assert_same(one, two):
    assert len(one) == len(two) > 0
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, two))


@pytest.fixture(autouse=True)
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_everything_at_once_changes_nothing(tmp_path):
    bare, bare_left, *_ = train()
    code = marks.of_code()
    watched, left, _, monitor = train(tmp_path / "out")
    assert_same(bare, watched)
    assert left == bare_left
    changed = marks.changed(code, marks.of_code())[0]
    assert changed == []
    assert monitor._relay is None and monitor._watch is None
    (folder,) = case.folders(tmp_path / "out")
    kinds = {name.rsplit("_", 1)[0] for name in case.csvs(folder)}
    assert kinds == {
        "actv", "actv_grad", "grad_reduced", "grad_unreduced", "exp_avg", "exp_avg_sq",
        "param_origin", "param_updated", "other", "attention_hook", "linear_hook",
        "moe_router_weight_hook", "moe_router_logit_hook", "stack",
    }  # fmt: skip
    assert (tmp_path / "out/anomaly_detected/rank0/anomaly.json").stat().st_size > 100
    assert {"layers.0.qkv.weight", "all_reduce.post_0"} <= set(
        case.names(case.rows(folder, "other"))
    )


@pytest.mark.parametrize(
    "config", [{"format": "api", "xy_distribution": True, "wg_distribution": True}, EVERYTHING]
)
def test_questions_change_nothing(config, tmp_path):
    def look(monitor, step):
        if monitor is not None:
            monitor.generate_wgrad_metrics(), monitor.generate_xy_metrics()
            monitor.ops = ["norm", "mean"] if step else ["nans"]
            if step == 2:
                monitor.reload_xy(xy_distribution=False)
            if step == 3:
                monitor.reload_xy(xy_distribution=True)

    bare, bare_left, *_ = train()
    watched, left, *_ = train(tmp_path / "out", config, look=look)
    assert_same(bare, watched)
    assert left == bare_left


@pytest.mark.parametrize("config", [{"collect_times": 2}, {"module_ranks": [5]}, {"start_step": 3}])
def test_ends_and_absences_change_nothing(config, tmp_path):
    bare, bare_left, *_ = train()
    watched, left, *_ = train(tmp_path / "out", {**EVERYTHING, **config})
    assert_same(bare, watched)
    assert left == bare_left


def test_a_stopped_monitor_keeps_no_model(tmp_path):
    *_, model, monitor = train(tmp_path / "out")
    gc.collect()
    assert model() is None, "the monitor keeps the model alive"
    del monitor


def test_a_mutant_is_seen():
    """The comparison itself can fail."""
    bare, *_ = train()
    seed()
    torch.rand(1)
    other, *_ = train(count=5)
    assert len(other) != len(bare)
    with pytest.raises(AssertionError):
        assert_same(bare, [*bare[:-1], bare[-1] + 1])
