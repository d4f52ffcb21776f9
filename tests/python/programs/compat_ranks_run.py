# Trains under TrainerMon on two ranks, one case after the other in one launch.
"""compat_ranks_run.py OUT: every case gets OUT/<case>; OUT/<rank>.json says what each gave back."""

import json
import logging
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import compat_case as case
import launch

OUT, RANK = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
WG = {"wg_distribution": True, "ops": ["norm"]}
lines = []
log = logging.getLogger("trainmon")
log.addHandler(
    type("Lines", (logging.Handler,), {"emit": lambda _, r: lines.append(r.getMessage())})()
)


def loss_of_rank(model, index):
    return model(case.batch(10 * index + RANK)).square().mean()


def train(name, config, count=1, model=None, before=None, each=None, group=None, **keys):
    """One case; what ended it early, by type and text."""
    folder = OUT / name
    model = DistributedDataParallel(case.net()) if model is None else model
    optimizer = case.adam(model)
    file = OUT / f"config{RANK}"
    with case.output(folder):
        monitor = case.TrainerMon(
            case.config_file(file / name, config), group, params_have_main_grad=False
        )
        monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=1, **keys)
        ended = None
        try:
            case.steps(model, optimizer, count, loss=loss_of_rank, each=each)
        except Exception as error:
            ended = [type(error).__name__, str(error)]
        hooks = len(model._forward_hooks), dist.all_reduce.__module__
        monitor.stop()
    return {"ended": ended, "hooks": hooks, "rank": monitor.rank, "pp": monitor.pp_stage,
            "mates": monitor.group_mates}  # fmt: skip


def plain_gradients():
    """Without any monitor: of this rank alone, and averaged."""
    model = case.net()
    loss_of_rank(model, 0).backward()
    alone = {n: p.grad.norm().item() for n, p in model.named_parameters()}
    for p in model.parameters():
        dist.all_reduce(
            p.grad, op=dist.ReduceOp.AVG if dist.get_backend() != "gloo" else dist.ReduceOp.SUM
        )
        p.grad /= 1 if dist.get_backend() != "gloo" else 2
    return alone, {n: p.grad.norm().item() for n, p in model.named_parameters()}


def ddp():
    found = train(
        "ddp", {**WG, "xy_distribution": True, "all_xy": True, "param_distribution": True}
    )
    return {**found, "gradients": plain_gradients()}


def module_ranks():
    return train("module_ranks", {**WG, "module_ranks": [1]})


def process_group():
    alone = [dist.new_group([0]), dist.new_group([1])][RANK]
    rules = [{"rule_name": "AnomalyNan", "args": {"threshold": 1e-9}}]
    train("alert", {**WG, "alert": {"rules": rules, "dump": True}})
    return train("process_group", {**WG, "alert": {"rules": rules, "dump": True}}, group=alone)


def dp_group():
    return train("dp_group", {**WG, "param_distribution": True}, dp_group=dist.group.WORLD)


def tp_group():
    model = case.net()
    model.head.weight.tensor_model_parallel = True
    model.head.bias.tensor_model_parallel = False
    return train("tp_group", {**WG}, model=model, tp_group=dist.group.WORLD)


def positional_groups():
    """The manual's order: dp_group before tp_group."""
    model = case.net()
    optimizer = case.adam(model)
    with case.output(OUT / "positional_groups"):
        monitor = case.trainer_mon(OUT / f"config{RANK}/positional", WG)
        monitor.set_monitor(model, 1, optimizer, dist.group.WORLD, None, 3)
        case.steps(model, optimizer, 1)
        monitor.stop()


def print_struct():
    return train("print_struct", {"print_struct": True, "module_ranks": [0]}, 3)


def print_struct_of_all():
    return train("print_struct_of_all", {"print_struct": True, "targets": {"head": {}}}, 3)


def talk(step):
    """What a training script says to its peers, here on two lines."""
    dist.all_reduce(torch.full((2,), float(RANK + 1)))
    dist.all_reduce(torch.full((2,), 10.0 * (RANK + 1)))
    dist.broadcast(torch.full((3,), float(RANK)), 0)


FIRST = talk.__code__.co_firstlineno + 2


def collectives():
    ops = {"ops": ["norm", "min", "max", "nans"], "wg_distribution": False}
    model = nn.Linear(4, 3)

    def run(name, count=1, **cc):
        return train(name, {**ops, "cc_distribution": {"enable": True, **cc}}, count,
                     model=model, each=talk)  # fmt: skip

    before = {key: getattr(dist, key) for key in dir(dist)}
    found = {
        "cc": run("cc", 3),
        "pre": run("cc_pre", cc_pre_hook=True),
        "line": run("cc_line", cc_codeline=[rf"compat_ranks_run.py\[{FIRST}\]"]),
        "nowhere": run("cc_nowhere", cc_codeline=[r"elsewhere.py\[1\]"]),
        "log": run("cc_log", 3, cc_log_only=True),
        "said": [line for line in lines if "all_reduce" in line][-1:],
    }
    train("cc_off", {**WG, "cc_distribution": {"enable": False}}, model=model, each=talk)
    found["left"] = [key for key in dir(dist) if before[key] is not getattr(dist, key)]
    return found


def append_output():
    folder = OUT / "append"
    if RANK == 0:
        old = folder / "Dec03_21-34-40-rank0-00000000"
        old.mkdir(parents=True)
        (old / "grad_reduced_0-0.csv").write_text(
            "vpp_stage,name,step,norm,shape,dtype\n0,old.weight,0,1.5,[1],torch.float32\n"
        )
        (folder / "Dec05_00-00-00-rank0-11111111").mkdir()  # out of range
    dist.barrier()
    times = ["Dec03_21-34-40", "Dec03_21-34-41"]
    found = train("append", {**WG, "append_output": times}, 2)
    for bad in (["yesterday", "today"], ["Dec03_21-34-41", "Dec03_21-34-40"]):
        try:
            train("append_bad", {**WG, "append_output": bad})
        except (RuntimeError, ValueError) as error:
            found.setdefault("errors", []).append([type(error).__name__, str(error)])
    return found


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = case.net()
    whole = {n: p.detach().clone() for n, p in model.named_parameters()}
    for layer in model.encoder.layers:
        fully_shard(layer)
    fully_shard(model)
    shards = {}

    def note(step):
        for name, p in model.named_parameters():
            shards[name] = p.grad.to_local().norm().item()

    config = {**WG, "param_distribution": True, "xy_distribution": True, "all_xy": True}
    found = train("fsdp2", config, model=model, each=note)
    return {**found, "shards": shards, "whole": {n: p.norm().item() for n, p in whole.items()}}


def early():
    """Constructed before there was a process group, as the manual advises."""
    model = case.net()
    optimizer = case.adam(model)
    EARLY.set_monitor(model, 1, optimizer)
    case.steps(model, optimizer, 1)
    EARLY.stop()
    return {"rank": EARLY.rank, "pp": EARLY.pp_stage, "mates": EARLY.group_mates}


def main():
    global EARLY
    with case.output(OUT / "early"):
        EARLY = case.trainer_mon(OUT / f"config{RANK}/early", {**WG, "module_ranks": [1]})
    launch.join()
    found = {}
    for run in (early, ddp, module_ranks, process_group, dp_group, tp_group, positional_groups,
                print_struct, print_struct_of_all, collectives, append_output, fsdp2):  # fmt: skip
        found[run.__name__] = run()
        dist.barrier()
    (OUT / f"{RANK}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
