# dropout_run.py RUNS OUT: how often a training with Dropout repeats itself, bare and watched in turn.
"""Not a test: docs/mindspore.md has its figures. Each training starts from the same weights, data and
seeds; an outcome is its losses and final weights, bit for bit."""

import collections
import hashlib
import os
import shutil
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
import numpy as np
from mindspore import Tensor, nn

import trainmon

KINDS = ["grad_micro", "grads", "weights", "moments", "activations"]


def outcome(is_watched: bool, out: str) -> str:
    np.random.seed(3)
    ms.set_seed(3)
    ms.manual_seed(3)
    random = np.random.RandomState(0)
    model = nn.SequentialCell(
        nn.Dense(6, 64), nn.Dropout(p=0.5), nn.Dense(64, 64), nn.Dropout(p=0.5), nn.Dense(64, 3)
    ).set_train()
    for parameter in model.get_parameters():
        parameter.set_data(Tensor(random.randn(*parameter.shape).astype(np.float32) / 8))
    optimizer = mlp.adamw(model)
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=out) if is_watched else None
    losses = mlp.train(model, optimizer)
    weights = [mlp.copy_of(parameter) for parameter in model.get_parameters()]
    if mon is not None:
        mon.stop()
        shutil.rmtree(out)
    digest = hashlib.sha256(repr(losses).encode())
    for weight in weights:
        digest.update(weight.tobytes())
    return digest.hexdigest()[:8]


ms.set_device("CPU")
found = {False: collections.Counter(), True: collections.Counter()}
for _ in range(int(sys.argv[1])):
    for is_watched in found:
        found[is_watched][outcome(is_watched, sys.argv[2])] += 1
    for is_watched, outcomes in found.items():
        print("watched" if is_watched else "bare", outcomes.most_common(), flush=True)
