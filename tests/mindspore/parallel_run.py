# parallel_run.py RUN watched|bare [FAULT]: data parallel over the processes of msrun; each writes its losses
# and weights. FAULT is what rank 1 alone has.
import json
import os
import resource
import signal
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
from mindspore import communication, nn

import trainmon


def fail(*_):
    raise ZeroDivisionError("planted")


out, is_watched = sys.argv[1], sys.argv[2] == "watched"
ms.set_device("CPU")
communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
rank = communication.get_rank()
fault = sys.argv[3] if len(sys.argv) > 3 and rank == 1 else ""
model = mlp.net()
optimizer = mlp.adamw(model)
kinds = ["grad_micro", "grads", "weights", "moments", "activations"]
mon = (
    trainmon.watch(model, optimizer, kinds=kinds, out=f"{out}/run")
    if is_watched and fault != "unwatched"
    else None
)
if fault == "sink":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
if fault == "raising":
    mon._adapter.series_of = mon._adapter.sweep = mon._adapter.forward_of_cell = fail
reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True)
losses = mlp.train(model, optimizer, rank=rank, reduce=reduce)
if mon is not None:
    mon.stop()
    if fault == "sink":
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with open(f"{out}/health_{rank}.json", "w") as file:
        json.dump(mon.health(), file, default=str)
weights = [mlp.copy_of(parameter).tolist() for parameter in model.get_parameters()]
with open(f"{out}/{sys.argv[2]}_{rank}.json", "w") as file:
    json.dump([losses, weights], file)
print(mlp.AT_ITS_END, flush=True)
