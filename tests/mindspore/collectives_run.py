# collectives_run.py OUT: two processes that call collectives by hand, under watch() and under TrainerMon.
import json
import logging
import os
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
import numpy as np
from mindspore import Tensor, communication, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed

import trainmon
from trainmon.compat.msprobe.mindspore import TrainerMon
from trainmon.compat.msprobe.trainer_mon import MonitorExit

out = sys.argv[1]
ms.set_device("CPU")
communication.init()
rank = communication.get_rank()
originals = distributed.all_reduce, comm_func.CommHandle.wait, "__call__" in vars(ops.AllReduce)


def given(step: int) -> Tensor:
    return Tensor(np.arange(4, dtype=np.float32) + 10 * rank + step)


@ms.jit
def compiled(x):
    return ops.AllReduce()(x) * 2


def step_of(model, optimizer, grad, step: int) -> float:
    loss, gradients = grad(*map(Tensor, mlp.batch(step, 0, rank)))
    x = given(step)
    distributed.all_reduce(x)  # in place
    ops.AllReduce()(given(step))
    ops.AllGather()(given(step))
    ops.Broadcast(0)((given(step),))
    one = given(step)
    handle = distributed.all_reduce(one, async_op=True)
    handle.wait()
    parts = [Tensor(np.zeros(4, np.float32)) for _ in range(2)]
    distributed.all_gather(parts, given(step))
    total = compiled(given(step))
    optimizer(gradients)
    return [float(loss), *mlp.copy_of(total).tolist(), *mlp.copy_of(x).tolist()]


def train(steps: int = 3):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    grad = mlp.gradients_of(model, optimizer)
    return model, optimizer, lambda step: step_of(model, optimizer, grad, step)


found = {}
_, _, step = train()
found["bare"] = [step(k) for k in range(3)]
model, optimizer, step = train()
settings = {"kinds": ["cc"], "collective_inputs": True, "out": f"{out}/run"}
with trainmon.watch(model, optimizer, **settings) as mon:
    found["watched"] = [step(k) for k in range(3)]
    found["parts_off"] = mon.stop()["parts_off"]
found["restored"] = originals == (
    distributed.all_reduce,
    comm_func.CommHandle.wait,
    "__call__" in vars(ops.AllReduce),
)

os.environ["MONITOR_OUTPUT_DIR"] = f"{out}/compat"
logging.basicConfig(filename=f"{out}/log_{rank}.txt", level=logging.INFO)


def config(name: str, **fields) -> str:
    path = f"{out}/{name}_{rank}.json"
    with open(path, "w") as file:
        json.dump({"targets": {}, "ops": ["norm", "max"], "cc_distribution": fields}, file)
    return path


model, optimizer, step = train()
monitor = TrainerMon(
    config("cc", enable=True, cc_codeline=["collectives_run.py"], cc_pre_hook=True)
)
monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=1)
found["compat"] = [step(k) for k in range(3)]
monitor.stop()
model, optimizer, step = train()
monitor = TrainerMon(config("log", enable=True, cc_log_only=True))
monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=1)
try:
    for k in range(3):
        step(k)
    found["ended"] = None
except MonitorExit:
    found["ended"] = k
with open(f"{out}/found_{rank}.json", "w") as file:
    json.dump(found, file)
print(mlp.AT_ITS_END, flush=True)
