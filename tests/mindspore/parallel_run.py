# parallel_run.py RUN WATCHED: data parallel over the processes of msrun; each writes its losses and weights.
import json
import os
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
from mindspore import communication, nn

import trainmon

out, is_watched = sys.argv[1], sys.argv[2] == "watched"
ms.set_device("CPU")
communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
rank = communication.get_rank()
model = mlp.net()
optimizer = mlp.adamw(model)
kinds = ["grad_micro", "grads", "weights", "moments", "activations"]
mon = trainmon.watch(model, optimizer, kinds=kinds, out=f"{out}/run") if is_watched else None
reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True)
losses = mlp.train(model, optimizer, rank=rank, reduce=reduce)
if mon is not None:
    mon.stop()
weights = [mlp.copy_of(parameter).tolist() for parameter in model.get_parameters()]
with open(f"{out}/{sys.argv[2]}_{rank}.json", "w") as file:
    json.dump([losses, weights], file)
