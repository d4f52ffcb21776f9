# compiled_run.py MODE RUN: trains bare, then watched, where MindSpore compiles; prints both losses as JSON.
import json
import os
import sys

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import mlp
from mindspore import Tensor, nn

import trainmon

KINDS = ["grad_micro", "grads", "weights", "moments", "activations"]


class Loss(nn.Cell):
    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, x, y):
        return ((self.model(x) - y) ** 2).mean()


class Compiled(mlp.Net):
    @ms.jit
    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


def train(mode: str, out: str) -> list:
    model = mlp.net()
    if mode == "cell":
        inner = Compiled()
        ms.load_param_into_net(inner, dict(model.parameters_and_names()))
        last = nn.Dense(3, 3, weight_init="ones", bias_init="zeros")
        model = nn.SequentialCell(inner, last).set_train()
    optimizer = mlp.adamw(model)
    if mode == "graph":
        ms.set_context(mode=ms.GRAPH_MODE)
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=out) if out else None
    if mode.startswith("graph"):
        ms.set_context(mode=ms.GRAPH_MODE)
        step = nn.TrainOneStepCell(Loss(model), optimizer).set_train()
        losses = [float(step(*map(Tensor, mlp.batch(k))).asnumpy()) for k in range(2)]
    else:
        grad = mlp.gradients_of(model, optimizer)
        losses = mlp.train(model, optimizer, 2, 1, ms.jit(grad) if mode == "jit" else grad)
    if mon is not None:
        mon.stop()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return losses


ms.set_device("CPU")
print(json.dumps([train(sys.argv[1], ""), train(sys.argv[1], sys.argv[2])]))
