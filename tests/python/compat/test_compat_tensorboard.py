# Format `tensorboard` of the compatible face: what CSV says, as TensorBoard's own reader sees it.
import copy
import json

import numpy as np
from tensorboard.backend.event_processing import event_accumulator as accumulators

import compat_case as case

TASKS = {
    "actv": "actv",
    "actv_grad": "actv_grad",
    "grad_unreduced": "acc_grad",
    "grad_reduced": "post_grad",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "param_origin": "param_origin",
    "param_updated": "param_updated",
}
EVERYTHING = {
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "monitor_mbs_grad": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "ops": ["norm", "min", "max", "mean", "zeros", "nans"],
    "ndigits": 20,
}


def events_of(folder):
    found = accumulators.EventAccumulator(
        str(folder), size_guidance=dict.fromkeys(accumulators.DEFAULT_SIZE_GUIDANCE, 0)
    )
    found.Reload()
    return found


def tags_of_csv(folder, ops):
    """{tag: [(step, value), ...]} as the peer's manual spells them."""
    found = {}
    for prefix, task in {**TASKS, "other": "mg_direction", "linear_hook": "sr"}.items():
        table = case.rows(folder, prefix, float_precision="round_trip")
        for _, row in table.iterrows():
            name, columns = row["name"], ops
            if prefix == "linear_hook":
                name, columns = name.removesuffix(".linear"), ["sr", "kernel_norm"]
            micro = f":{row['micro_step']}" if "micro_step" in table.columns else ""
            for column in columns:
                tag = f"{row['vpp_stage']}:{name}{micro}/rank0/{task}_{column}"
                value = float(np.float32(row[column]))
                found.setdefault(tag, []).append((int(row["step"]), value))
    return found


def test_the_same_values_as_csv(tmp_path, caplog):
    runs = {
        name: case.run(tmp_path / name, {**EVERYTHING, "format": name}, 4, micro=2)
        for name in ("csv", "tensorboard")
    }
    assert "tensorboard" not in caplog.text
    assert not case.csvs(runs["tensorboard"])
    events = events_of(runs["tensorboard"])
    wanted = tags_of_csv(runs["csv"], EVERYTHING["ops"])
    assert set(events.Tags()["scalars"]) == set(wanted)
    assert "0:head.input:1/rank0/actv_norm" in wanted
    assert "0:head.weight/rank0/post_grad_max" in wanted
    for tag, values in wanted.items():
        got = events.Scalars(tag)
        assert [event.step for event in got] == [step for step, _ in values], tag
        # Twenty decimals of the CSV, then float32.
        numbers = [value for _, value in values]
        assert np.allclose([event.value for event in got], numbers, rtol=1.2e-7, atol=1e-20), tag
    health = json.loads((runs["tensorboard"] / "health.json").read_text())
    (sink,) = health["sinks"]
    assert sink["name"] == "msprobe_tensorboard" and sink["rows_dropped"] == {}
    assert sink["rows_written"] == health["rows_produced"] > 0 and health["closed"]


def test_values_are_not_rounded(tmp_path):
    config = {"wg_distribution": True, "ndigits": 0, "format": "tensorboard"}
    events = events_of(case.run(tmp_path, config, 1))
    (event,) = events.Scalars("0:head.bias/rank0/post_grad_norm")
    assert event.value != round(event.value)


def test_ur_distribution(tmp_path):
    """One histogram per parameter and step, of the moments that mv_distribution shows: those before
    the optimizer steps. Its size is that of its bins, however long the run."""
    model = case.net()
    optimizer = case.adam(model, lr=0.01)
    state = {}

    def each(step):
        state.update(copy.deepcopy(optimizer.state.get(model.head.weight, {})))

    config = {"ur_distribution": True, "format": "tensorboard"}
    folder = case.run(tmp_path, config, 12, model=model, optimizer=optimizer, each=each)
    events = events_of(folder)
    assert not events.Tags()["scalars"]
    names = {f"0:{name}" for name in ("head.weight", "head.bias")}
    tags = set(events.Tags()["histograms"])
    assert {f"{n}/rank0/adam_{what}" for n in names for what in ("update", "ratio")} <= tags
    step = float(state["step"])
    first = (state["exp_avg"].double() / (1 - 0.9**step)).numpy()
    second = (state["exp_avg_sq"].double() / (1 - 0.999**step)).numpy()
    for what, values in (
        ("update", first / (np.sqrt(second) + 1e-8)),
        ("ratio", first / np.sqrt(second)),
    ):
        drawn = events.Histograms(f"0:head.weight/rank0/adam_{what}")
        assert [event.step for event in drawn] == list(range(1, 12))
        assert {len(event.histogram_value.bucket) for event in drawn} == {30}
        counts, edges = np.histogram(values, 30, (-1, 1))
        assert drawn[-1].histogram_value.bucket == list(counts)
        np.testing.assert_allclose(drawn[-1].histogram_value.bucket_limit, edges[1:], atol=1e-15)
