# The ops backend: framework operations measure what the C++ kernels measure, for every dtype and layout.
import math

import numpy as np
import pytest
import torch
from torch import nn

import trainmon
import versions
from adapter_rows import healthy, rows
from trainmon.base.row_state import FIELDS
from trainmon.table import FLAGS
from trainmon.torch.measuring import late_values, ops

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def values(dtype, seed=0):
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype in INTEGERS:
        return torch.randint(0, 2 if dtype == "bool" else 100, (7, 5)).to(kind)
    x = torch.randn(7, 5)
    x[0, :4] = torch.tensor([0.0, -0.0, 1e-9, -1e-9])
    if dtype != "float8_e4m3fn":  # it has no infinity
        x[1, :2] = torch.tensor([math.inf, -math.inf])
    x[2, 0] = math.nan
    x[3, :2] = torch.finfo(kind).smallest_normal / 2
    return x.to(kind)


def from_ops(tensor):
    return dict(zip(FIELDS, ops.measure(tensor, 1e-8).tolist(), strict=True))


def expected_state(tensor):
    """The fields by NumPy on float64, nothing of ours."""
    smallest = torch.finfo(tensor.dtype).smallest_normal if tensor.is_floating_point() else 0.0
    x = tensor.to(torch.float64).reshape(-1).numpy()
    good = x[np.isfinite(x)]
    mean = math.fsum(good) / len(good) if len(good) else 0.0
    return {
        "count": x.size,
        "nans": np.isnan(x).sum(),
        "pos_infs": (x == np.inf).sum(),
        "neg_infs": (x == -np.inf).sum(),
        "zeros": (np.abs(good) < 1e-8).sum(),
        "subnormals": ((good != 0) & (np.abs(good) < smallest)).sum(),
        "sum": math.fsum(good),
        "mean": mean,
        "m2": math.fsum((good - mean) ** 2),
        "sum_sq": math.fsum(good**2),
        "min": good.min(initial=np.inf),
        "max": good.max(initial=-np.inf),
        "absmax": np.abs(good).max(initial=0.0),
        "exponent": 0,
    }


def assert_states(found, expected):
    for field in FIELDS:
        exact = field in ("count", "nans", "pos_infs", "neg_infs", "zeros", "subnormals", "min")
        tolerance = 0.0 if exact else 1e-12
        assert math.isclose(found[field], expected[field], rel_tol=tolerance, abs_tol=1e-300), (
            field,
            found[field],
            expected[field],
        )


@pytest.mark.parametrize("dtype", versions.dtypes(FLOATS + INTEGERS))
def test_every_dtype(dtype):
    tensor = values(dtype)
    assert_states(from_ops(tensor), expected_state(tensor))
    # and the C++ kernels say the same
    stats = ["norm", "min", "max", "mean", "zeros", "nans", "infs", "subnormals", "absmax", "std"]
    clean = (
        tensor if dtype in INTEGERS else torch.nan_to_num(tensor.float(), 0, 0, 0).to(tensor.dtype)
    )
    core = trainmon.tensor_stats([clean], stats=stats)
    found = from_ops(clean)
    assert core["norm"][0] == pytest.approx(math.sqrt(found["sum_sq"]), rel=1e-12)
    assert core["mean"][0] == pytest.approx(found["mean"], rel=1e-12)
    assert core["std"][0] == pytest.approx(math.sqrt(found["m2"] / found["count"]), rel=1e-12)
    assert core["zeros"][0] == found["zeros"] / found["count"]
    for name in ("min", "max", "absmax", "subnormals"):
        assert core[name][0] == found[name]


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[::2, 1:4],
    "expanded": lambda x: x[:, :1].expand(7, 4),
    "expanded twice": lambda x: x[0, 0].expand(3, 4),
    "channels_last": lambda x: x[:6].reshape(1, 2, 3, 5).to(memory_format=torch.channels_last),
    "scalar": lambda x: x[0, 4],
    "empty": lambda x: x[:0],
    "one": lambda x: x[4:5, 4],
    "all nan": lambda x: torch.full((3,), math.nan),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout):
    tensor = LAYOUTS[layout](values("float32"))
    assert_states(from_ops(tensor), expected_state(tensor))


def test_a_large_tensor_is_taken_in_pieces(monkeypatch):
    monkeypatch.setattr(ops, "CHUNK", 10)
    tensor = values("float32") + 100  # a mean far from zero: the second pass must use the whole's
    assert_states(from_ops(tensor), expected_state(tensor))


def test_a_huge_expanded_view_needs_no_memory():
    tensor = torch.tensor([3.0, 4.0]).unsqueeze(1).expand(2, 1 << 31)
    found = from_ops(tensor)
    assert found["count"] == 1 << 32 and found["sum_sq"] == 25.0 * (1 << 31)


@pytest.mark.parametrize(
    "tensor, word",
    [
        (torch.ones(2, dtype=torch.complex64), "complex64"),
        (torch.ones(2).to_sparse(), "sparse_coo"),
        (torch.ones(2, device="meta"), "meta"),
        (torch.arange(12_000.0).unfold(0, 4000, 1), "overlapping"),
        (torch.imag(torch.ones(2, dtype=torch.complex64).conj()), "neg_view"),
    ],
)
def test_what_is_refused_by_name(tensor, word):
    with pytest.raises(ops.Refused, match=f"^{word}$"):
        ops.measure(tensor, 1e-8)


def test_modes_of_the_user_do_not_see_the_operations():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(3)
    with Mode():
        ops.measure(tensor, 1e-8)
    assert seen == []


# --- the whole path ------------------------------------------------------------------------------

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


def train(out, **settings):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    weights = []
    with trainmon.watch(model, optimizer, kinds=KINDS, out=out, **settings) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                loss = model(torch.randn(5, 3)).pow(2).sum()
                (loss * (math.nan if step == 2 else 1)).backward()
            optimizer.step()
        weights = [p.detach().clone() for p in model.parameters()]
    health = healthy(monitor)
    return health, weights


KEY = ("kind", "name", "element", "step", "micro_step", "call", "dtype", "flags")
VALUES = ("count", "nans", "zeros", "norm", "mean", "min", "max", "absmax", "std")


def test_a_run_measured_by_operations_is_the_run_measured_by_kernels(tmp_path):
    by_kernels, weights = train(tmp_path / "kernels")
    by_ops, weights_too = train(tmp_path / "ops", backend="ops")
    for one, two in zip(weights, weights_too):
        assert torch.equal(one, two) or bool((one.isnan() == two.isnan()).all())
    assert by_ops["rows_produced"] == by_kernels["rows_produced"] > 0
    assert by_ops["sinks"][0]["rows_written"] == by_ops["rows_produced"]
    columns = [c for c in KEY if c not in ("dtype", "flags")]

    def place(row):
        return *(row[c] for c in columns), int(row["flags"]) & ~FLAGS["by_operations"]

    assert all(int(r["flags"]) & FLAGS["by_operations"] for r in rows(tmp_path / "ops"))
    kernels = {place(r): r for r in rows(tmp_path / "kernels")}
    found = {place(r): r for r in rows(tmp_path / "ops")}
    assert found.keys() == kernels.keys()
    for key, expected in kernels.items():
        for name in VALUES:
            assert found[key][name] == pytest.approx(
                expected[name], rel=1e-12, abs=1e-300, nan_ok=True
            ), (key, name)
    order = [[place(r) for r in rows(tmp_path / n)] for n in ("kernels", "ops")]
    assert order[0] == order[1]


class Event:
    """A device's event, ready when the test says so."""

    def __init__(self):
        self.done = False

    def query(self):
        return self.done


def test_values_that_arrive_late_keep_their_place(tmp_path, monkeypatch):
    """Copies that are not ready hold nothing up, and what came meanwhile is ordered by seq."""
    made = []

    class Slow(late_values.Copy):
        def __init__(self, vectors):
            super().__init__(vectors)
            self.event = Event()
            made.append(self.event)

    monkeypatch.setattr(late_values, "Copy", Slow)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(
        model, optimizer, kinds=["grads", "weights"], backend="ops", out=tmp_path
    )
    weights = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        weights.append(model.weight.detach().clone())
        optimizer.step()
    assert made and monitor.health()["rows_pending"] == monitor.health()["rows_produced"]
    for event in made:
        event.done = True
    healthy(monitor)
    found = rows(tmp_path, kind="param_origin", name="weight")
    assert [r["norm"] for r in found] == pytest.approx([float(w.norm()) for w in weights])


def test_a_device_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    class Never(late_values.Copy):
        def ready(self):
            return False

    monkeypatch.setattr(late_values, "Copy", Never)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(
        model, optimizer, backend="ops", stop_timeout_seconds=0.2, out=tmp_path
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    health = healthy(monitor)
    sink = health["sinks"][0]
    assert health["rows_produced"] == 2
    assert sink["rows_written"] + sum(sink["rows_dropped"].values()) == 2
