# A small model in MindSpore, and the same training in NumPy and float64: the oracle of these tests.
from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

SIZES = {"fc1.weight": (5, 6), "fc1.bias": (5,), "fc2.weight": (3, 5), "fc2.bias": (3,)}
AT_ITS_END = "at its end"  # the last line of a program of two ranks
LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-2, 0.9, 0.999, 1e-6, 0.01


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.RandomState(seed)
    return {name: random.randn(*shape).astype(np.float32) for name, shape in SIZES.items()}


def batch(step: int, micro: int = 0, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(100 * rank + 10 * step + micro + 1)
    return random.randn(4, 6).astype(np.float32), random.randn(4, 3).astype(np.float32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(6, 5)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(5, 3)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


def net() -> Net:
    model = Net()
    for name, parameter in model.parameters_and_names():
        parameter.set_data(Tensor(weights()[name]))
    return model.set_train()


def adamw(model):
    return nn.AdamWeightDecay(
        model.trainable_params(), LEARNING_RATE, BETA1, BETA2, EPS, WEIGHT_DECAY
    )


def gradients_of(model, optimizer):
    def loss(x, y):
        return ((model(x) - y) ** 2).mean()

    return ms.value_and_grad(loss, None, optimizer.parameters)


def train(model, optimizer, steps: int = 3, micro: int = 2, grad=None, rank=0, reduce=None) -> list:
    """The losses."""
    grad, losses = grad or gradients_of(model, optimizer), []
    for step in range(steps):
        total = None
        for k in range(micro):
            loss, found = grad(*map(Tensor, batch(step, k, rank)))
            losses.append(float(loss))
            total = found if total is None else tuple(a + b for a, b in zip(total, found))
        optimizer(total if reduce is None else reduce(total))
    return losses


def forward(w: dict, x: np.ndarray) -> dict[str, np.ndarray]:
    a1 = x @ w["fc1.weight"].T + w["fc1.bias"]
    h = np.maximum(a1, 0)
    return {"x": x, "a1": a1, "h": h, "out": h @ w["fc2.weight"].T + w["fc2.bias"]}


def backward(w: dict, values: dict, y: np.ndarray) -> tuple[dict, dict]:
    """(gradients of parameters, of activations)"""
    out = 2 * (values["out"] - y) / y.size
    h = out @ w["fc2.weight"]
    a1 = h * (values["a1"] > 0)
    found = {
        "fc1.weight": a1.T @ values["x"],
        "fc1.bias": a1.sum(0),
        "fc2.weight": out.T @ values["h"],
        "fc2.bias": out.sum(0),
    }
    return found, {"out": out, "h": h, "a1": a1}


def oracle(steps: int = 3, micro: int = 2, ranks: int = 1) -> list[dict]:
    """Per step: {kind: {name: array}}, and lists per rank and micro-step where those differ."""
    w = {name: value.astype(np.float64) for name, value in weights().items()}
    m = {name: np.zeros(shape) for name, shape in SIZES.items()}
    v = {name: np.zeros(shape) for name, shape in SIZES.items()}
    seen = []
    for step in range(steps):
        row: dict = {"param_origin": dict(w), "micro": [], "values": [], "flows": [], "own": []}
        for rank in range(ranks):
            own = {name: np.zeros(shape) for name, shape in SIZES.items()}
            for k in range(micro):
                x, y = (part.astype(np.float64) for part in batch(step, k, rank))
                values = forward(w, x)
                found, flows = backward(w, values, y)
                row["micro"].append(found)
                row["values"].append(values)
                row["flows"].append(flows)
                own = {name: own[name] + found[name] for name in w}
            row["own"].append(own)
        row["grad_reduced"] = g = {n: sum(own[n] for own in row["own"]) / ranks for n in w}
        m = {n: BETA1 * m[n] + (1 - BETA1) * g[n] for n in w}
        v = {n: BETA2 * v[n] + (1 - BETA2) * g[n] ** 2 for n in w}
        update = {n: m[n] / (np.sqrt(v[n]) + EPS) for n in w}
        w = {n: w[n] - LEARNING_RATE * (update[n] + WEIGHT_DECAY * w[n]) for n in w}
        row.update(param_updated=dict(w), exp_avg=m, exp_avg_sq=v)
        seen.append(row)
    return seen


def check(row, expected: np.ndarray, relative: float = 2e-5) -> None:
    """One row of trainmon.read() against NumPy's statistics of the array."""
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    assert row["count"] == expected.size
    for name, value in {
        "norm": np.sqrt((expected**2).sum()),
        "min": expected.min(),
        "max": expected.max(),
        "mean": expected.mean(),
    }.items():
        allowed = relative * scale * (np.sqrt(expected.size) if name == "norm" else 1)
        assert abs(row[name] - value) <= allowed, (row["kind"], row["name"], name, row[name], value)


def copy_of(tensor) -> np.ndarray:
    return np.array(tensor.asnumpy())
