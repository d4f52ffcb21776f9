# checks_run.py RUN sound|doubled: step checks of data parallel training over the processes of msrun. `doubled`: at
# step 7 rank 1 steps with twice the reduced gradient of fc2.weight.
import os
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
from mindspore import Tensor, communication, nn

import trainmon

STEPS, AT = 12, 7
out, fault = sys.argv[1:]
ms.set_device("CPU")
communication.init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
rank = communication.get_rank()
model = mlp.net()
optimizer = nn.Adam(model.trainable_params(), 1e-2)
grad = mlp.gradients_of(model, optimizer)
reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True)
with trainmon.watch(model, optimizer, checks=True, every=1, out=f"{out}/run"):
    for step in range(STEPS):
        _, gradients = grad(*map(Tensor, mlp.batch(step, rank=rank)))
        reduced = list(reduce(gradients))
        if fault == "doubled" and step == AT and rank == 1:
            reduced[2] = reduced[2] * 2
        optimizer(tuple(reduced))
print(mlp.AT_ITS_END, flush=True)
