# The examples of msprobe's monitor manual, word for word, but for the import and the comments.
"""Comments of JSON are left out: with them it is no JSON, for the peer as for us. Comments of Python
say nothing that runs. Run as a program, it trains two ranks: compat_manual.py OUT."""

import os
import pathlib
import sys
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch

CONFIGS = {
    "param": """
{
    "targets": {
    },
    "param_distribution": true,
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"]
}
""",
    "wg": """
{
    "targets": {
    },
    "wg_distribution": true,
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"]
}
""",
    "xy": """
{
    "targets": {
    },
    "xy_distribution": true,
    "forward_only": false,
    "backward_only": false,
    "all_xy": true,
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"]
}
""",
    "mv": """
{
    "targets": {
    },
    "mv_distribution": true,
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"]
}
""",
    "stack": """
{
    "targets": {
    },
    "format": "csv",
    "stack_info": true
}
""",
    "print_struct": """
{
    "print_struct": true
}
""",
    "targets": """
{
    "targets": {
        "module.encoder.layers.0.mlp": {},
        "module.embedding.word_embedding.weight": {}
    }
}
""",
    "all targets": """
{
    "targets": {}
}
""",
    "l2": """
{
    "l2_targets": {
        "attention_hook": ["0:0.self_attention.core_attention.flash_attention"],
        "linear_hook": ["0:0.self_attention.linear_qkv", "0:1.self_attention.linear_qkv"]
    },
    "recording_l2_features": true,
    "sa_order": "b,s,h,d"
}
""",
    "ops": """
{
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "nans", "zeros"],
    "ndigits": 12
}
""",
    "mbs": """
{
    "wg_distribution": true,
    "monitor_mbs_grad": true
}
""",
    "details": """
{
    "targets": {
        "language_model.encoder.layers.0": {"input": "tuple[2]:0", "output": "tensor", "input_grad":"tuple[2]:0", "output_grad":"tuple[1]:0"}
    },
    "dynamic_on": false,
    "start_step": 0,
    "collect_times": 100000000,
    "step_interval": 1,
    "print_struct": false,
    "module_ranks": [0,1,2,3],
    "ur_distribution": true,
    "xy_distribution": true,
    "all_xy": true,
    "forward_only": false,
    "backward_only": false,
    "mv_distribution": true,
    "param_distribution": true,
    "wg_distribution": true,
    "monitor_mbs_grad": true,
    "cc_distribution": {"enable":true, "cc_codeline":[]},
    "alert": {
        "rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}],
        "dump": false
    },
    "format": "csv",
    "ops": ["min", "max", "norm", "zeros", "nans", "mean"],
    "eps": 1e-8,
    "ndigits": 12,
    "step_count_per_record": 1,
    "append_output": [],
    "squash_name": true
}
""",
}  # fmt: skip

# Fragments of an object: "alert": {...},
ALERTS = {
    "turbulence": """
    "alert": {
        "rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}],
        "dump": true
    },
""",
    "nan": """
    "alert": {
        "rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e10}}],
        "dump": true
    },
""",
    "both": """
    "alert": {
        "rules": [
                  {"rule_name": "AnomalyNan", "args": {"threshold": 1e10}},
                  {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}
        ],
        "dump": true
    },
""",
}

QUICK_START = """
model, optimizer, opt_param_scheduler = setup_model_and_optimizer(
        model_provider, model_type)

...
import launch
from trainmon.compat.msprobe.pytorch import TrainerMon
monitor = TrainerMon(
    config_file_path="./monitor_config.json",
    params_have_main_grad=True,
)
monitor.set_monitor(
    model,
    grad_acc_steps=args.global_batch_size//args.data_parallel_size//args.micro_batch_size,
    optimizer=optimizer,
    dp_group=None,
    tp_group=None,
    start_iteration=0
)
"""  # fmt: skip

OLD = """
from trainmon.compat.msprobe.pytorch import TrainerMon
monitor = TrainerMon(
    config_file_path="./monitor_config.json",
    params_have_main_grad=True,
    opt_ty=None
)
monitor.set_wrapped_optimizer(optimizer)
monitor.monitor_gnorm_with_ad(
    model,
    grad_acc_steps=args.global_batch_size//args.data_parallel_size//args.micro_batch_size,
    optimizer=optimizer,
    dp_group=None,
    tp_group=None,
    start_iteration=0
)
"""  # fmt: skip

PIPELINE = """
monitor = TrainerMon(
    "./monitor_config.json",
    process_group=mpu.get_pipeline_model_parallel_group(),
    params_have_main_grad=True
)
"""

OPS = """
if {some condition}:
    monitor.ops = ["min", "max"]
"""
RELOAD = """
if {some condition}:
    monitor.reload_xy(xy_distribution=True)
"""
GRADIENTS = """
reduced, unreduced = monitor.generate_wgrad_metrics()
"""
ACTIVATIONS = """
actv, actv_grad = monitor.generate_xy_metrics()
"""


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def forward(self, x, mask):
        return x + self.mlp(x) * mask


class Core(nn.Module):
    def forward(self, q, k, v):
        return v


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attention = nn.ModuleDict(
            {
                "linear_qkv": nn.Linear(4, 12),
                "core_attention": nn.ModuleDict({"flash_attention": Core()}),
            }
        )

    def forward(self, x):
        parts = self.self_attention["linear_qkv"](x)[:, :, None].chunk(3, -1)
        return self.self_attention["core_attention"]["flash_attention"](*parts).squeeze(2)


class Model(nn.Module):
    """Has the modules and parameters that the examples name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.language_model = nn.ModuleDict(
            {"encoder": nn.ModuleDict({"layers": nn.ModuleList([Layer()])})}
        )
        self.module = nn.ModuleDict(
            {"encoder": nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": nn.Linear(4, 4)})])}),
             "embedding": nn.ModuleDict({"word_embedding": nn.Embedding(9, 4)})}
        )  # fmt: skip
        self.add_module("0", Attention())
        self.add_module("1", Attention())

    def forward(self, tokens):
        x = self.module["embedding"]["word_embedding"](tokens)
        x = getattr(self, "1")(getattr(self, "0")(x))
        x = self.module["encoder"]["layers"][0]["mlp"](x)
        return self.language_model["encoder"]["layers"][0](x, torch.ones(4))


def setup_model_and_optimizer(model_provider, model_type):
    model = model_provider()
    return model, torch.optim.Adam(model.parameters(), lr=0.01), None


def names(**more):
    """What the snippets expect around them."""
    args = types.SimpleNamespace(global_batch_size=8, data_parallel_size=2, micro_batch_size=2)
    mpu = types.SimpleNamespace(
        get_pipeline_model_parallel_group=lambda: (
            dist.group.WORLD if dist.is_initialized() else None
        )
    )
    return {
        "setup_model_and_optimizer": setup_model_and_optimizer, "model_provider": Model,
        "model_type": None, "args": args, "mpu": mpu, **more,
    }  # fmt: skip


def train(space, count=2, micro=2):
    model, optimizer = space["model"], space["optimizer"]
    for _ in range(count):
        optimizer.zero_grad()
        for _ in range(micro):
            model(torch.arange(6).view(2, 3)).square().mean().backward()
        optimizer.step()


def main(out):
    rank, _ = launch.join()
    kept = []
    for name, text, config in (
        ("quick", QUICK_START, CONFIGS["wg"]),
        ("old", QUICK_START.split("...")[0] + OLD, CONFIGS["xy"]),
        ("details", QUICK_START, CONFIGS["details"]),
    ):
        folder = pathlib.Path(out, name, f"at{rank}")
        folder.mkdir(parents=True)
        os.chdir(folder)
        os.environ["MONITOR_OUTPUT_DIR"] = str(pathlib.Path(out, name))
        pathlib.Path("monitor_config.json").write_text(config)
        space = names(model_provider=lambda: DistributedDataParallel(Model()))
        exec(text, space)
        train(space)
        if name == "old":  # the others end with the process, as the manual's do
            space["monitor"].stop()
        dist.barrier()
        kept.append(space)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
